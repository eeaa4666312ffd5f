#!/usr/bin/env python3
"""Forward and backward of a Qwen3-4B shape on a GPU: Headroom beside transformers, in one run on one machine.

Needs the PyTorch and transformers of the machine with the GPU, and liger-kernel on PYTHONPATH for the peers' loss; nothing in the
build or the tests uses it. Batch 1, bf16, random weights and tokens. The peers run in a process of their own. Their attention is
scaled_dot_product_attention with cuDNN, the loss Liger's fused kernel.

    checkpointing           every layer recomputed from its input
    plain                   nothing recomputed
    compiled                torch.compile of the decoder
    compiled_checkpointing  both

    bench/peers/step_cuda.py --headroom build/cuda/headroom > bench/results/step_cuda_peers.json
"""
import argparse
import json
import os
import subprocess
import sys

from side import run_headroom

SHAPE = {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 1 << 21,
         "rope_theta": 1e6}
SIDES = ("checkpointing", "plain", "compiled", "compiled_checkpointing")
LONG = 65536  # tokens from which a step is measured once
PEAK = 989e12  # FLOP/s of bf16 on the data sheet


def measure(request):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    config = transformers.Qwen3Config(**SHAPE, use_cache=False)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.train()
    loss_of = LigerFusedLinearCrossEntropyLoss()
    context = request["context"]
    tokens = torch.randint(SHAPE["vocab_size"], (1, context + 1), device="cuda")
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def step(decoder, count):
        model.zero_grad(set_to_none=True)
        events[0].record()
        hidden = decoder(input_ids=tokens[:, :count]).last_hidden_state
        loss = loss_of(model.lm_head.weight, hidden.view(-1, SHAPE["hidden_size"]), tokens[0, 1:count + 1])
        loss.backward()
        events[1].record()
        torch.cuda.synchronize()
        return events[0].elapsed_time(events[1]), loss.item()

    def run(side):
        if "checkpointing" in side:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.gradient_checkpointing_disable()
        torch.compiler.reset()
        decoder = torch.compile(model.model) if side.startswith("compiled") else model.model
        try:
            for _ in range(request["warmup"]):
                step(decoder, min(context, request["warm_context"]))
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            runs = [step(decoder, context) for _ in range(request["steps"])]
        except torch.cuda.OutOfMemoryError:
            return {"status": "oom"}
        times = sorted(run[0] for run in runs)
        return {"status": "ok", "milliseconds": times[len(times) // 2], "loss": runs[0][1],
                "live_peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}

    sides = {}
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        for side in request["sides"]:
            sides[side] = run(side)
            print(context, side, sides[side], file=sys.stderr, flush=True)
    return {"sides": sides, "torch": torch.__version__, "transformers": transformers.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = lambda text: [int(part) for part in text.split(",")]
    parser.add_argument("--headroom", default="build/cuda/headroom", help="the program")
    parser.add_argument("--context", type=sizes, default=[8192, 32768, 131072])
    parser.add_argument("--more-sides", type=int, default=8192, help="the longest context that runs all sides")
    parser.add_argument("--sides", type=lambda text: text.split(","), default=list(SIDES), help="those that it runs")
    parser.add_argument("--seconds", type=float, default=5, help="of Headroom, after a warm-up")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return print(json.dumps(measure(json.loads(options.side))))
    rows = []
    for context in options.context:
        long = context > LONG
        bench, ours = run_headroom([options.headroom, "bench", "step", "--model", "qwen3-4b", "--context", str(context), "--dtype", "bf16",
                                    "--device", "cuda:0", "--max-seconds", str(options.seconds), "--json"]
                                   + (["--warmup", "0", "--steps", "1"] if long else []))
        row = {"context": context, "headroom": ours}
        # 6 FLOP for each parameter and token, and causal attention's products forward and backward.
        flops = 6 * 4.022e9 * context + 3.5 * 36 * 2 * 4096 * float(context) ** 2
        ours["mfu"] = flops / (ours["milliseconds"] / 1e3) / PEAK
        print(context, "headroom", {k: ours[k] for k in ("milliseconds", "mfu", "planned_bytes", "strategy")}, file=sys.stderr, flush=True)
        sides = options.sides if context <= options.more_sides else ["checkpointing"]
        request = {"sides": sides, "context": context, "warmup": 2, "warm_context": 8192 if long else context, "steps": 1 if long else 5}
        child = subprocess.run([sys.executable, __file__, "--side", json.dumps(request)], stdout=subprocess.PIPE, text=True)
        if child.returncode != 0:
            row["status"] = f"exit {child.returncode}"
        else:
            answer = json.loads(child.stdout.splitlines()[-1])
            row.update(torch=answer["torch"], transformers=answer["transformers"])
            for side, found in answer["sides"].items():
                row[side] = found
                if found["status"] == "ok":
                    found["ratio"] = found["milliseconds"] / ours["milliseconds"]
                    print(f"{context} {side}: {found['ratio']:.3f}x", file=sys.stderr)
        rows.append(row)
    json.dump({"machine": bench["machine"], "commit": bench["commit"], "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
