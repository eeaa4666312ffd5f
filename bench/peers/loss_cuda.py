#!/usr/bin/env python3
"""Headroom's linear cross-entropy on a GPU beside Liger's and three ways to write it in PyTorch, in one run on one machine.

Needs the PyTorch of the machine with the GPU, and liger-kernel on PYTHONPATH for its sides; nothing in the build or the tests uses
it. Every round runs a case in Headroom and then in each side, each in a process of its own; the median of the rounds' ratios counts.
All give the loss and both gradients; rates are 6 * tokens * vocab * hidden over the time.

    liger_f32          Liger's fused kernel, the gradient of the weight summed in f32, as Headroom does
    liger_bf16         the same, summed in bf16
    materialised       F.linear, then F.cross_entropy: all logits at once
    chunked            a loop over chunks of tokens; autograd keeps every chunk's logits
    chunked_recompute  the same with torch.utils.checkpoint: one chunk's logits at a time, computed twice

    bench/peers/loss_cuda.py --headroom build/cuda/headroom > bench/results/loss_cuda_peers.json
"""
import argparse
import json
import sys

from side import median_of, run_headroom, run_side
from side import repeat as repeat_seconds

SIDES = ("liger_f32", "liger_bf16", "materialised", "chunked", "chunked_recompute")


def measure(request):
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    tokens, hidden_size, vocab, chunk = (request[key] for key in ("tokens", "hidden", "vocab", "chunk"))
    torch.manual_seed(0)
    hidden = torch.randn(tokens, hidden_size, dtype=torch.bfloat16, device="cuda", requires_grad=True)  # [tokens, hidden]
    weight = torch.empty(vocab, hidden_size, dtype=torch.bfloat16, device="cuda")  # [vocab, hidden]
    weight.normal_(0.0, hidden_size ** -0.5).requires_grad_(True)
    labels = torch.randint(vocab, (tokens,), device="cuda")
    if request["side"].startswith("liger"):
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
        liger = LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32 if request["side"] == "liger_f32" else None)

    def summed(h, w, l):
        return F.cross_entropy(F.linear(h, w).float(), l, reduction="sum")

    def loss_of(h, l):
        if request["side"].startswith("liger"):
            return liger(weight, h, l)
        if request["side"] == "materialised":
            return F.cross_entropy(F.linear(h, weight).float(), l)
        total = 0.0
        for begin in range(0, h.shape[0], chunk):
            part = (h[begin:begin + chunk], weight, l[begin:begin + chunk])
            total = total + (checkpoint(summed, *part, use_reentrant=False)
                             if request["side"] == "chunked_recompute" else summed(*part))
        return total / h.shape[0]

    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def once():
        hidden.grad = weight.grad = None
        events[0].record()
        loss_of(hidden, labels).backward()
        events[1].record()
        torch.cuda.synchronize()
        return (events[0].elapsed_time(events[1]) / 1e3,)

    try:
        for _ in range(2):
            once()
        hidden.grad = weight.grad = None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        milliseconds, = repeat_seconds(once, request["seconds"])
    except torch.cuda.OutOfMemoryError:
        return {"status": "oom"}
    gradient_bytes = sum(t.grad.numel() * t.grad.element_size() for t in (hidden, weight))
    return {"milliseconds": milliseconds, "tflops": 6e-9 * tokens * hidden_size * vocab / milliseconds,
            "added_bytes": torch.cuda.max_memory_allocated() - before - gradient_bytes, "torch": torch.__version__}


def compare(case, options):
    command = [options.headroom, "bench", "loss", "--device", "cuda:0", "--impl", "fused-cuda", "--json", "--steps", "200",
               "--warmup", "2", "--max-seconds", str(options.seconds)]
    for key, value in case.items():
        command += ["--" + key, str(value)]
    request = {**case, "chunk": options.chunk, "seconds": options.seconds}
    rounds = []
    for _ in range(options.rounds):
        bench, ours = run_headroom(command)
        ours["tflops"] = 6e-9 * case["tokens"] * case["hidden"] * case["vocab"] / ours["milliseconds"]
        rounds.append({"headroom": ours, **{side: run_side(__file__, {**request, "side": side}) for side in options.sides}})

    def figure(side, key):
        return median_of(rounds, lambda r: r[side].get(key))

    def ratio(side):
        return median_of(rounds, lambda r: r[side]["milliseconds"] / r["headroom"]["milliseconds"]
                         if r[side]["status"] == "ok" else None)

    row = {**case, "headroom": {key: figure("headroom", key) for key in ("milliseconds", "tflops", "added_bytes", "error")}}
    for side in options.sides:
        row[side] = {"time_ratio": ratio(side), "status": rounds[-1][side]["status"],
                     **{key: figure(side, key) for key in ("milliseconds", "tflops", "added_bytes")}}
    row["rounds"] = rounds
    return row, bench


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = lambda text: [int(part) for part in text.split(",")]
    parser.add_argument("--headroom", default="build/cuda/headroom", help="the program")
    parser.add_argument("--tokens", type=sizes, default=[8192, 32768, 131072], help="a list, such as 8192,32768")
    parser.add_argument("--hidden", type=int, default=2560)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--chunk", type=int, default=4096, help="tokens of a chunk in PyTorch")
    parser.add_argument("--sides", type=lambda text: text.split(","), default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="per side, case and round, after two runs")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return print(json.dumps(measure(json.loads(options.side))))
    rows = []
    for tokens in options.tokens:
        row, bench = compare({"tokens": tokens, "hidden": options.hidden, "vocab": options.vocab, "dtype": "bf16"}, options)
        rows.append(row)
        for name in ("headroom", *options.sides):
            if row[name]["milliseconds"] is None:
                text = row[name]["status"]
            else:
                text = "{milliseconds:.1f} ms, {tflops:.0f} TFLOP/s, {added_bytes:,.0f} bytes added".format(**row[name])
            print(f"{tokens} tokens, {name}: {text}", file=sys.stderr)
    json.dump({"machine": bench["machine"], "commit": bench["commit"], "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
