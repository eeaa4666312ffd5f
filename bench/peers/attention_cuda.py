#!/usr/bin/env python3
"""Headroom's attention on a GPU beside cuDNN, FlexAttention and PyTorch's f32 attention, in one run on one machine.

Needs the PyTorch of the machine with the GPU; nothing in the build or the tests uses it. Every case runs in Headroom
(deterministic and not) and in the peer, one after the other, in rounds; the median of the rounds' ratios counts.

    bench/peers/attention_cuda.py --headroom build/cuda/headroom > bench/results/attention_cuda_peers.json
"""
import argparse
import json
import math
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

TOKENS = 16384


def dense_cases():
    for head_dim in (64, 128):
        for seq in (1024, 4096, 16384, 65536, 131072):
            heads = 2048 // head_dim if seq <= TOKENS else {65536: 4, 131072: 2}[seq] * (128 // head_dim)
            for mask in ("full", "causal"):
                groups = (1, 4) if heads >= 4 and seq in (4096, 16384) else (1,)
                for group in groups:
                    yield {"kind": "dense", "dtype": "bf16", "batch": max(TOKENS // seq, 1), "heads": heads,
                           "kv_heads": heads // group, "head_dim": head_dim, "seq": seq, "mask": mask}
    for seq in (4096, 16384):
        for mask in ("full", "causal"):
            yield {"kind": "dense 256", "dtype": "bf16", "batch": TOKENS // seq, "heads": 8, "kv_heads": 8, "head_dim": 256,
                   "seq": seq, "mask": mask}


def sparse_cases():
    for mask in ("window:4096", "causal+dilated:8192/2"):
        yield {"kind": "sparse", "dtype": "bf16", "batch": 1, "heads": 16, "kv_heads": 16, "head_dim": 128, "seq": 16384,
               "mask": mask}


def f32_cases():
    for head_dim in (16, 32, 64, 128):
        for seq in (4096, 8192, 16384):
            yield {"kind": "f32", "dtype": "f32", "batch": 8, "heads": 1, "kv_heads": 1, "head_dim": head_dim, "seq": seq,
                   "mask": "full"}


def run_headroom(case, options, implementation, nondeterministic=False):
    command = [options.headroom, "bench", "attention", "--device", "cuda:0", "--impl", implementation, "--json", "--steps", "200",
               "--max-seconds", str(options.seconds)]
    for key in ("seq", "head_dim", "heads", "kv_heads", "batch", "dtype", "mask"):
        command += ["--" + key.replace("_", "-"), str(case[key])]
    if nondeterministic:
        command.append("--nondeterministic")
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result, result["rows"][0]


def median_times(function, sets, seconds):
    """Forward and backward in turn, as Headroom's bench runs them, queued without waiting; medians in ms."""
    def once(i, events):
        q, k, v, gradient = sets[i % len(sets)]
        events[0].record()
        output = function(q, k, v)
        events[1].record()
        torch.autograd.grad(output, (q, k, v), gradient)
        events[2].record()

    def timed(count):
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(3)] for _ in range(count)]
        for i in range(count):
            once(i, events[i])
        torch.cuda.synchronize()
        return [(e[0].elapsed_time(e[1]), e[1].elapsed_time(e[2])) for e in events]

    timed(3)
    each = statistics.median(sum(pair) for pair in timed(3))
    times = timed(max(5, min(200, int(2 * seconds * 1e3 / each))))
    return statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)


def make_inputs(case, copies):
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[case["dtype"]]
    sets = []
    for _ in range(copies):
        heads = (case["heads"], case["kv_heads"], case["kv_heads"], case["heads"])
        q, k, v, gradient = (torch.randn(case["batch"], case["seq"], h, case["head_dim"], device="cuda", dtype=dtype)
                             .transpose(1, 2) for h in heads)
        for tensor in (q, k, v):
            tensor.requires_grad_(True)
        sets.append((q, k, v, gradient))
    return sets


def peer_function(case):
    if case["kind"] != "sparse":
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=case["mask"] == "causal",
                                                              enable_gqa=case["heads"] != case["kv_heads"])
    if case["mask"].startswith("window"):
        window = int(case["mask"].split(":")[1])
        visible = lambda b, h, q, k: (q >= k) & (q - k < window)
    else:
        segment, rate = map(int, case["mask"].split(":")[1].split("/"))
        visible = lambda b, h, q, k: ((q >= k) & (q // segment == k // segment) & (q % rate == h % rate)
                                      & (k % rate == h % rate))
    blocks = create_block_mask(visible, None, case["heads"], case["seq"], case["seq"], device="cuda")
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=blocks)


def run_peer(case, seconds):
    copies = 3
    sets = make_inputs(case, copies)
    function = peer_function(case)
    backends = {"f32": [SDPBackend.EFFICIENT_ATTENTION], "sparse": [SDPBackend.MATH]}
    with sdpa_kernel(backends.get(case["kind"], [SDPBackend.CUDNN_ATTENTION])):
        return median_times(function, sets, seconds)


def compare(case, options):
    rounds = []
    names = ["portable", "tf32x3"] if case["kind"] == "f32" else ["sm90"]
    row = dict(case)
    for _ in range(options.rounds):
        peer_forward, peer_backward = run_peer(case, options.seconds)
        entry = {"peer_forward_ms": peer_forward, "peer_backward_ms": peer_backward}
        for name in names:
            bench, ours = run_headroom(case, options, name)
            entry[name] = {key: ours[key] for key in ("status", "forward_ms", "backward_ms", "forward_gflops", "backward_gflops",
                                                      "error", "added_bytes", "reserved_bytes", "planned_bytes", "free_change_bytes")}
            if case["kind"] != "f32":
                _, free = run_headroom(case, options, name, nondeterministic=True)
                entry[name]["backward_nondeterministic_ms"] = free["backward_ms"]
        rounds.append(entry)
    for name in names:
        middle = lambda key, peer: statistics.median(r[peer] / r[name][key] for r in rounds)
        row[name] = {"forward_ratio": middle("forward_ms", "peer_forward_ms"),
                     "backward_ratio": middle("backward_ms", "peer_backward_ms")}
        if case["kind"] != "f32":
            row[name]["backward_nondeterministic_ratio"] = middle("backward_nondeterministic_ms", "peer_backward_ms")
    row["rounds"] = rounds
    return row, bench


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headroom", default="build/cuda/headroom", help="the program")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.2, help="per program, case and pass")
    parser.add_argument("--kinds", default="dense,dense 256,sparse,f32")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for case in (*dense_cases(), *sparse_cases(), *f32_cases()):
        if case["kind"] not in options.kinds.split(","):
            continue
        try:
            row, bench = compare(case, options)
        except subprocess.CalledProcessError as error:
            print(case, error.stderr.strip().splitlines()[-1:], file=sys.stderr, flush=True)
            continue
        rows.append(row)
        ratios = "; ".join("{} {}".format(name, " ".join(f"{key.split('_ratio')[0]} {value:.2f}x" for key, value in row[name].items()))
                           for name in ("sm90", "portable", "tf32x3") if name in row)
        print("{kind} {dtype} b{batch} h{heads}/{kv_heads} d{head_dim} {seq} {mask}: ".format(**case) + ratios, file=sys.stderr,
              flush=True)
    means = {}
    for kind in sorted({row["kind"] for row in rows}):
        for name in ("sm90", "portable", "tf32x3"):
            of_kind = [row[name] for row in rows if row["kind"] == kind and name in row]
            for key in ("forward_ratio", "backward_ratio", "backward_nondeterministic_ratio"):
                values = [r[key] for r in of_kind if key in r]
                if values:
                    means[f"{kind} {name} {key}"] = {"geometric_mean": geometric_mean(values), "least": min(values)}
    for key, value in means.items():
        print(f"{key}: mean {value['geometric_mean']:.3f}, least {value['least']:.3f}", file=sys.stderr)
    json.dump({"machine": bench["machine"], "commit": bench["commit"], "torch": torch.__version__,
               "cudnn": torch.backends.cudnn.version(), "means": means, "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
