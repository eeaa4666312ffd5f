#!/usr/bin/env python3
"""Headroom's attention beside PyTorch's scaled_dot_product_attention on the CPU, in turn, in one run on one machine.

Needs a PyTorch of its own (python3 -m venv, pip install torch numpy); nothing in the build or the tests uses it.
Each round runs a case in Headroom and then in PyTorch; the ratio of a round compares neighbours in time, and the
median of the rounds counts.

    bench/peers/attention_cpu.py --headroom build/release/headroom --rounds 5 > bench/results/attention_cpu_peers.json
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def cases(quick):
    sizes = [4096] if quick else [1024, 2048, 4096, 8192]
    for heads, sequences in ((8, sizes), (1, [4096] if quick else [4096, 8192])):
        for head_dim in (64, 128):
            for mask in ("full", "causal"):
                for seq in sequences:
                    yield {"dtype": "f32", "heads": heads, "head_dim": head_dim, "mask": mask, "seq": seq}
    if not quick:
        for head_dim in (64, 128):
            yield {"dtype": "bf16", "heads": 8, "head_dim": head_dim, "mask": "causal", "seq": 4096}


def run_headroom(case, options):
    command = [options.headroom, "bench", "attention", "--impl", "tiled", "--json", "--steps", "1000",
               "--max-seconds", str(options.seconds), "--threads", str(options.threads)]
    for key in ("seq", "head_dim", "heads", "dtype", "mask"):
        command += ["--" + key.replace("_", "-"), str(case[key])]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result, result["rows"][0]


def run_torch(case, layout, seconds):
    heads, seq, head_dim = case["heads"], case["seq"], case["head_dim"]
    shape = (1, seq, heads, head_dim) if layout == "rows" else (1, heads, seq, head_dim)
    tensors = [torch.randn(shape, dtype=torch.float32).to(DTYPES[case["dtype"]]) for _ in range(4)]
    if layout == "rows":  # as a projection leaves them, and as Headroom takes them
        tensors = [t.transpose(1, 2) for t in tensors]
    q, k, v, gradient = tensors
    for t in (q, k, v):
        t.requires_grad_(True)
    forward, backward = [], []
    begin = time.perf_counter()
    while len(forward) < 2 or time.perf_counter() - begin < seconds:
        q.grad = k.grad = v.grad = None
        start = time.perf_counter()
        output = F.scaled_dot_product_attention(q, k, v, is_causal=case["mask"] == "causal")
        middle = time.perf_counter()
        output.backward(gradient)
        end = time.perf_counter()
        forward.append(middle - start)
        backward.append(end - middle)
    return statistics.median(forward[1:]) * 1e3, statistics.median(backward[1:]) * 1e3


def compare(case, options):
    rounds = []
    # PyTorch gets the layout it is faster with.
    layout = min(("rows", "heads"), key=lambda name: sum(run_torch(case, name, options.seconds / 4)))
    for _ in range(options.rounds):
        bench, ours = run_headroom(case, options)
        torch_forward, torch_backward = run_torch(case, layout, options.seconds)
        gflop_ms = ours["forward_gflops"] * ours["forward_ms"]  # GFLOP/s times ms
        rounds.append({
            "peak_gflops": bench["machine"]["peak_gflops"]["f32"],
            "forward_ms": ours["forward_ms"], "backward_ms": ours["backward_ms"],
            "forward_of_peak": ours["forward_of_peak"], "backward_of_peak": ours["backward_of_peak"],
            "torch_forward_ms": torch_forward, "torch_backward_ms": torch_backward,
            "gflop_ms": gflop_ms,
        })
    middle = lambda value: statistics.median(value(r) for r in rounds)
    return {
        **case,
        "torch_layout": layout,
        "forward_ratio": middle(lambda r: r["torch_forward_ms"] / r["forward_ms"]),
        "backward_ratio": middle(lambda r: r["torch_backward_ms"] / r["backward_ms"]),
        "forward_of_peak": middle(lambda r: r["forward_of_peak"]),
        "backward_of_peak": middle(lambda r: r["backward_of_peak"]),
        "torch_forward_of_peak": middle(lambda r: r["gflop_ms"] / r["torch_forward_ms"] / r["peak_gflops"]),
        "torch_backward_of_peak": middle(lambda r: 2.5 * r["gflop_ms"] / r["torch_backward_ms"] / r["peak_gflops"]),
        "rounds": rounds,
    }, bench


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headroom", default="build/release/headroom", help="the program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per program, case and round")
    parser.add_argument("--quick", action="store_true", help="seq 4096 only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows = []
    for case in cases(options.quick):
        row, bench = compare(case, options)
        rows.append(row)
        print("{dtype} heads {heads} d {head_dim} seq {seq} {mask}: forward {forward_ratio:.2f}x "
              "({forward_of_peak:.0%} of peak, PyTorch {torch_forward_of_peak:.0%}), backward {backward_ratio:.2f}x "
              "({backward_of_peak:.0%}, PyTorch {torch_backward_of_peak:.0%})".format(**row), file=sys.stderr)
    json.dump({"machine": bench["machine"], "commit": bench["commit"], "torch": torch.__version__,
               "threads": options.threads, "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
