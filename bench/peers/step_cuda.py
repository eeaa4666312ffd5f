#!/usr/bin/env python3
"""Forward and backward of a Qwen3-4B shape on a GPU: Headroom beside transformers, in one run on one machine.

Needs the PyTorch and transformers of the machine with the GPU, and liger-kernel on PYTHONPATH for the peers' loss; nothing in the
build or the tests uses it. Batch 1, bf16, random weights and tokens. Each side runs in a process of its own. The peers' attention is
scaled_dot_product_attention with cuDNN, their loss Liger's fused kernel.

    checkpointing           every layer recomputed from its input
    plain                   nothing recomputed
    compiled                torch.compile of the decoder
    compiled_checkpointing  both

    bench/peers/step_cuda.py --headroom build/cuda/headroom > bench/results/step_cuda_peers.json
"""
import argparse
import json
import os
import sys

from side import run_headroom, run_side

SHAPE = {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 1 << 21,
         "rope_theta": 1e6}
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
    if "checkpointing" in request["side"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    decoder = torch.compile(model.model) if request["side"].startswith("compiled") else model.model
    loss_of = LigerFusedLinearCrossEntropyLoss()
    context = request["context"]
    tokens = torch.randint(SHAPE["vocab_size"], (1, context + 1), device="cuda")
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def step(count):
        model.zero_grad(set_to_none=True)
        events[0].record()
        hidden = decoder(input_ids=tokens[:, :count]).last_hidden_state
        loss = loss_of(model.lm_head.weight, hidden.view(-1, SHAPE["hidden_size"]), tokens[0, 1:count + 1])
        loss.backward()
        events[1].record()
        torch.cuda.synchronize()
        return events[0].elapsed_time(events[1]), loss.item()

    try:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            for _ in range(request["warmup"]):
                step(min(context, request["warm_context"]))
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            runs = [step(context) for _ in range(request["steps"])]
    except torch.cuda.OutOfMemoryError:
        return {"status": "oom"}
    times = sorted(run[0] for run in runs)
    return {"milliseconds": times[len(times) // 2], "loss": runs[0][1], "live_peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(), "torch": torch.__version__, "transformers": transformers.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = lambda text: [int(part) for part in text.split(",")]
    parser.add_argument("--headroom", default="build/cuda/headroom", help="the program")
    parser.add_argument("--context", type=sizes, default=[8192, 32768, 131072])
    parser.add_argument("--more-sides", type=int, default=8192, help="the longest context that runs all sides")
    parser.add_argument("--seconds", type=float, default=5, help="of Headroom, after a warm-up")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return print(json.dumps(measure(json.loads(options.side))))
    rows = []
    for context in options.context:
        bench, ours = run_headroom([options.headroom, "bench", "step", "--model", "qwen3-4b", "--context", str(context), "--dtype", "bf16",
                                    "--device", "cuda:0", "--max-seconds", str(options.seconds), "--json"])
        row = {"context": context, "headroom": ours}
        # 6 FLOP for each parameter and token, and causal attention's products forward and backward.
        flops = 6 * 4.022e9 * context + 3.5 * 36 * 2 * 4096 * float(context) ** 2
        ours["mfu"] = flops / (ours["milliseconds"] / 1e3) / PEAK
        sides = ("checkpointing", "plain", "compiled", "compiled_checkpointing") if context <= options.more_sides else ("checkpointing",)
        for side in sides:
            long = context > 65536
            row[side] = run_side(__file__, {"side": side, "context": context, "warmup": 2, "warm_context": 8192 if long else context,
                                            "steps": 1 if long else 5})
            if row[side]["status"] == "ok":
                row[side]["ratio"] = row[side]["milliseconds"] / ours["milliseconds"]
        rows.append(row)
        for name in ("headroom", *sides):
            print(context, name, {k: v for k, v in row[name].items() if k in ("milliseconds", "ratio", "status", "mfu", "live_peak_bytes",
                                                                              "reserved_bytes", "planned_bytes")}, file=sys.stderr)
    json.dump({"machine": bench["machine"], "commit": bench["commit"], "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
