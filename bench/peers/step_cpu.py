#!/usr/bin/env python3
"""A training step of Headroom beside the same model in transformers and PyTorch on the CPU, in turn, in one run.

Needs an environment of its own (python3 -m venv, pip install torch transformers); nothing in the build or the tests uses
it. PyTorch's side: the model of --model-dir (random weights where it has none), sdpa attention, gradient checkpointing, f32,
batch 1, the loss as transformers computes it; its update is clip_grad_norm_ and fused AdamW. Each round runs a context in
Headroom and then in PyTorch; the median of the rounds' ratios counts. Of Headroom's row, `milliseconds` is forward, loss and
backward, and `update_milliseconds` the update; a row without the latter gets no ratio with the update.

    bench/peers/step_cpu.py --model-dir DIR --headroom build/release/headroom > bench/results/step_cpu_peers.json
"""
import argparse
import json
import os
import sys
import time

from side import median_of, peak_bytes, repeat, resident_bytes, run_headroom, run_side, serve


def measure(request):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    folder, context = request["model_dir"], request["context"]
    settings = {"dtype": torch.float32, "attn_implementation": "sdpa"}
    if any(name.endswith(".safetensors") for name in os.listdir(folder)):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, **settings)
    else:
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder), **settings)
    model.config.use_cache = False
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(model.config.vocab_size, (1, context))  # [batch, seq]

    def step(ids):
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss

    def update():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def once():
        start = time.perf_counter()
        losses.append(step(tokens).item())
        middle = time.perf_counter()
        update()
        return middle - start, time.perf_counter() - middle

    losses = []
    step(tokens[:, :128])  # starts the threads and makes the optimizer's state
    update()
    optimizer.zero_grad(set_to_none=True)
    before = resident_bytes()
    milliseconds, update_milliseconds = repeat(once, request["seconds"])
    return {"milliseconds": milliseconds, "update_milliseconds": update_milliseconds,
            "tokens_per_second": context / (milliseconds + update_milliseconds) * 1e3, "loss": losses[0],
            "parameters": sum(p.numel() for p in model.parameters()),
            "peak_bytes": peak_bytes(), "added_bytes": peak_bytes() - before,
            "torch": torch.__version__, "transformers": transformers.__version__}


def compare(context, options):
    command = [options.headroom, "bench", "step", "--model", options.model, "--context", str(context), "--json",
               "--threads", str(options.threads)]
    request = {"model_dir": options.model_dir, "context": context, "threads": options.threads, "seconds": options.seconds}
    rounds = []
    for _ in range(options.rounds):
        bench, ours = run_headroom(command)
        rounds.append({"headroom": ours, "torch": run_side(__file__, request)})

    def ratio(update):
        def of(r):
            ours, theirs = r["headroom"], r["torch"]
            if theirs["status"] != "ok" or ours.get("status", "ok") != "ok":
                return None
            if not update:
                return theirs["milliseconds"] / ours["milliseconds"]
            if "update_milliseconds" not in ours:
                return None
            return ((theirs["milliseconds"] + theirs["update_milliseconds"]) /
                    (ours["milliseconds"] + ours["update_milliseconds"]))
        return median_of(rounds, of)

    def figures(side, keys):
        return {key: median_of(rounds, lambda r: r[side].get(key)) for key in keys}

    return {
        "model": options.model, "context": context, "ratio": ratio(False), "ratio_with_update": ratio(True),
        "headroom": figures("headroom", ("milliseconds", "kernels_milliseconds", "update_milliseconds",
                                         "tokens_per_second")),
        "torch": {**figures("torch", ("milliseconds", "update_milliseconds", "tokens_per_second", "peak_bytes",
                                      "added_bytes")), "status": rounds[-1]["torch"]["status"]},
        "rounds": rounds,
    }, bench


def describe(row):
    ours, theirs = row["headroom"], row["torch"]
    if theirs["milliseconds"] is None:
        return f"context {row['context']}: PyTorch {theirs['status']}"
    text = "context {}: PyTorch {:.0f} ms and {:.0f} ms update, peak {:.0f} MiB".format(
        row["context"], theirs["milliseconds"], theirs["update_milliseconds"], theirs["peak_bytes"] / 2**20)
    if row["ratio"] is not None:
        text += "; headroom {:.0f} ms: {:.2f}x".format(ours["milliseconds"], row["ratio"])
    if row["ratio_with_update"] is not None:
        text += ", with update {:.2f}x".format(row["ratio_with_update"])
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headroom", default="build/release/headroom", help="the program")
    parser.add_argument("--model", default="demo", help="the model's name in Headroom")
    parser.add_argument("--model-dir", help="the same model as a Hugging Face directory; config.json is enough")
    parser.add_argument("--context", type=lambda text: [int(part) for part in text.split(",")], default=[4096, 16384])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="per PyTorch run, after one step")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return serve(options.side, measure)
    if not options.model_dir:
        parser.error("--model-dir is required")
    rows = []
    for context in options.context:
        row, bench = compare(context, options)
        rows.append(row)
        print(describe(row), file=sys.stderr)
    ran = next((r["torch"] for row in rows for r in row["rounds"] if r["torch"]["status"] == "ok"), {})
    json.dump({"machine": bench.get("machine"), "commit": bench.get("commit"), "torch": ran.get("torch"),
               "transformers": ran.get("transformers"), "threads": options.threads,
               "torch_memory": "ru_maxrss of a process of its own; added_bytes is that less what was resident after a step "
               "on 128 tokens (weights, optimizer state), so gradients are in it", "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
