#!/usr/bin/env python3
"""Headroom's linear cross-entropy beside PyTorch's on the CPU, in turn, in one run on one machine: time and memory.

Needs a PyTorch of its own (python3 -m venv, pip install torch numpy); nothing in the build or the tests uses it.
Each round runs a case in Headroom and then in each PyTorch side, each in a process of its own; the ratio of a round
compares neighbours in time, and the median of the rounds counts. All give the loss and both gradients.

    materialised       F.linear, then F.cross_entropy: all logits at once
    chunked            a loop over chunks of tokens, summed, then divided; autograd keeps every chunk's logits
    chunked_recompute  the same with torch.utils.checkpoint: one chunk's logits at a time, computed twice

    bench/peers/loss_cpu.py --headroom build/release/headroom --rounds 5 > bench/results/loss_cpu_peers.json
"""
import argparse
import json
import sys
import time

from side import median_of, peak_bytes, repeat, resident_bytes, run_headroom, run_side, serve

SIDES = ("materialised", "chunked", "chunked_recompute")


def measure(request):
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    tokens, hidden_size, vocab, chunk = (request[key] for key in ("tokens", "hidden", "vocab", "chunk"))
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[request["dtype"]]
    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    hidden = torch.randn(tokens, hidden_size, dtype=dtype, requires_grad=True)  # [tokens, hidden]
    weight = torch.empty(vocab, hidden_size, dtype=dtype)  # [vocab, hidden]
    weight.normal_(0.0, hidden_size ** -0.5).requires_grad_(True)
    labels = torch.randint(vocab, (tokens,))

    def summed(h, w, l):
        return F.cross_entropy(F.linear(h, w).float(), l, reduction="sum")

    def loss_of(h, l):
        if request["side"] == "materialised":
            return F.cross_entropy(F.linear(h, weight).float(), l)
        total = 0.0
        for begin in range(0, h.shape[0], chunk):
            part = (h[begin:begin + chunk], weight, l[begin:begin + chunk])
            total = total + (checkpoint(summed, *part, use_reentrant=False)
                             if request["side"] == "chunked_recompute" else summed(*part))
        return total / h.shape[0]

    def once():
        hidden.grad = weight.grad = None
        start = time.perf_counter()
        loss = loss_of(hidden, labels)
        middle = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        losses.append(loss.item())
        return end - start, middle - start, end - middle

    losses = []
    loss_of(hidden[:64], labels[:64]).backward()  # starts the threads, loads what PyTorch loads late
    hidden.grad = weight.grad = None
    before = resident_bytes()
    milliseconds, forward, backward = repeat(once, request["seconds"])
    gradient_bytes = sum(t.grad.numel() * t.grad.element_size() for t in (hidden, weight))
    return {"milliseconds": milliseconds, "forward_ms": forward, "backward_ms": backward, "loss": losses[0],
            "gflops": 6e-6 * tokens * hidden_size * vocab / milliseconds,
            "peak_bytes": peak_bytes(), "added_bytes": peak_bytes() - before - gradient_bytes,
            "torch": torch.__version__}


def compare(case, options):
    command = [options.headroom, "bench", "loss", "--impl", "fused", "--json",
               "--max-seconds", str(options.seconds), "--threads", str(options.threads)]
    for key, value in case.items():
        command += ["--" + key, str(value)]
    request = {**case, "chunk": options.chunk, "threads": options.threads, "seconds": options.seconds}
    rounds = []
    for _ in range(options.rounds):
        bench, ours = run_headroom(command)
        rounds.append({"headroom": ours, **{side: run_side(__file__, {**request, "side": side}) for side in SIDES}})

    def ratio(side, key):
        def of(r):
            ran = r[side]["status"] == "ok" and r["headroom"]["status"] == "ok"
            return r[side][key] / r["headroom"][key] if ran and r["headroom"][key] else None
        return median_of(rounds, of)

    def figure(side, key):
        return median_of(rounds, lambda r: r[side][key] if r[side]["status"] == "ok" else None)

    sides = {side: {
        "time_ratio": ratio(side, "milliseconds"), "memory_ratio": ratio(side, "added_bytes"),
        **{key: figure(side, key) for key in ("milliseconds", "gflops", "added_bytes", "peak_bytes")},
        "status": rounds[-1][side]["status"],
    } for side in SIDES}
    ours = {key: figure("headroom", key) for key in ("milliseconds", "gflops", "added_bytes", "error")}
    ours["status"] = rounds[-1]["headroom"]["status"]
    return {**case, "chunk": options.chunk, "headroom": ours, **sides, "rounds": rounds}, bench


def describe(name, side):
    if side["milliseconds"] is None:
        return f"{name} {side['status']}"
    text = "{} {:.0f} ms, {:.0f} MiB added".format(name, side["milliseconds"], side["added_bytes"] / 2**20)
    if side.get("time_ratio") is not None:
        text += " ({:.2f}x the time".format(side["time_ratio"])
        text += ", {:.1f}x the memory)".format(side["memory_ratio"]) if side["memory_ratio"] is not None else ")"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = lambda text: [int(part) for part in text.split(",")]
    parser.add_argument("--headroom", default="build/release/headroom", help="the program")
    parser.add_argument("--tokens", type=sizes, default=[4096], help="a list, such as 4096,16384")
    parser.add_argument("--hidden", type=sizes, default=[512])
    parser.add_argument("--vocab", type=sizes, default=[151936])
    parser.add_argument("--dtype", type=lambda text: text.split(","), default=["f32"], help="f32, bf16")
    parser.add_argument("--chunk", type=int, default=4096, help="tokens of a chunk in PyTorch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per side, case and round, after one run")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return serve(options.side, measure)
    rows = []
    for dtype in options.dtype:
        for vocab in options.vocab:
            for hidden in options.hidden:
                for tokens in options.tokens:
                    case = {"tokens": tokens, "hidden": hidden, "vocab": vocab, "dtype": dtype}
                    row, bench = compare(case, options)
                    rows.append(row)
                    print(f"{dtype} tokens {tokens} hidden {hidden} vocab {vocab}: " + "; ".join(
                        describe(name, row[name]) for name in ("headroom", *SIDES)), file=sys.stderr)
    versions = {r[side]["torch"] for row in rows for r in row["rounds"] for side in SIDES if "torch" in r[side]}
    json.dump({"machine": bench["machine"], "commit": bench["commit"], "torch": ", ".join(sorted(versions)),
               "threads": options.threads, "torch_memory": "ru_maxrss of a process of its own; added_bytes is that less "
               "what was resident with the inputs after a run on 64 tokens, and less the gradients", "rows": rows},
              sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
