#!/usr/bin/env python3
"""Headroom's attention on a GPU beside cuDNN, FlexAttention and PyTorch's f32 attention, in one run on one machine.

Needs the PyTorch of the machine with the GPU; nothing in the build or the tests uses it. Every case runs in Headroom
(deterministic and not) and in the peer, one after the other, in rounds; the median of the rounds' ratios counts. The
kind grid is f32 over a grid of sizes, with the computation that keeps its scores beside both, a head size at a time;
bench/plot_attention_grid.py makes a table and a picture of it.

    bench/peers/attention_cuda.py --headroom build/cuda/headroom > bench/results/attention_cuda_peers.json
"""
import argparse
import gc
import json
import math
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

IMPLEMENTATIONS = ("sm90", "portable", "tf32x3", "bf16x3")
TOKENS = 16384
GRID_MEANS_FROM = 4096  # shorter cells of the grid are over in microseconds: they are shown, and count in no mean
LONG_MS = 1000          # of a run that is measured once
GRID_KEYS = ("status", "forward_ms", "backward_ms", "error", "added_bytes", "peak_bytes", "reserved_bytes", "planned_bytes")
DENSE_KEYS = ("status", "forward_ms", "backward_ms", "forward_gflops", "backward_gflops", "error", "added_bytes", "reserved_bytes",
              "planned_bytes", "free_change_bytes")


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


def grid_case(head_dim, seq):
    return {"kind": "grid", "dtype": "f32", "batch": 8, "heads": 1, "kv_heads": 1, "head_dim": head_dim, "seq": seq, "mask": "full"}


def run_headroom(case, options, implementations, *more):
    command = [options.headroom, "bench", "attention", "--device", "cuda:0", "--impl", implementations, "--json", "--steps", "200",
               "--max-seconds", str(options.seconds), *more]
    for key in ("seq", "head_dim", "heads", "kv_heads", "batch", "dtype", "mask"):
        command += ["--" + key.replace("_", "-"), str(case[key])]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def timed(function, sets, count):
    """Forward and backward in turn, as Headroom's bench runs them, queued without waiting; pairs of ms."""
    def once(i, events):
        q, k, v, gradient = sets[i % len(sets)]
        events[0].record()
        output = function(q, k, v)
        events[1].record()
        torch.autograd.grad(output, (q, k, v), gradient)
        events[2].record()

    events = [[torch.cuda.Event(enable_timing=True) for _ in range(3)] for _ in range(count)]
    for i in range(count):
        once(i, events[i])
    torch.cuda.synchronize()
    return [(e[0].elapsed_time(e[1]), e[1].elapsed_time(e[2])) for e in events]


def median_times(function, sets, seconds):
    """Of a function that has run before, so that its kernels are loaded."""
    times = timed(function, sets, 1)
    if sum(times[0]) < LONG_MS:
        each = statistics.median(sum(pair) for pair in timed(function, sets, 3))
        times = timed(function, sets, max(5, min(200, int(2 * seconds * 1e3 / each))))
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
    with sdpa_kernel([SDPBackend.MATH] if case["kind"] == "sparse" else [SDPBackend.CUDNN_ATTENTION]):
        timed(function, sets, 3)
        return median_times(function, sets, seconds)


def naive_attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v


def run_in_f32(case, function, seconds):
    """Times, and bytes at the peak over inputs, results (O and LSE) and gradients, as Headroom counts; or out of memory."""
    result = {"status": "oom"}
    try:
        timed(function, make_inputs(dict(case, seq=min(case["seq"], 1024)), 1), 3)
        sets = make_inputs(case, 3 if case["seq"] < TOKENS else 1)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        forward_ms, backward_ms = median_times(function, sets, seconds)
        results = sum(tensor.nbytes for tensor in sets[0]) + 4 * case["batch"] * case["heads"] * case["seq"]
        added = max(torch.cuda.max_memory_allocated() - before - results, 0)
        result = {"status": "ok", "forward_ms": forward_ms, "backward_ms": backward_ms, "added_bytes": added}
    except torch.cuda.OutOfMemoryError:
        pass
    sets = None
    gc.collect()
    torch.cuda.empty_cache()
    return result


def compare_in_grid(head_dim, options):
    """The rows of one head size. Headroom runs them in one process, shortest first: kernels are loaded when long ones come."""
    names = ("portable", "tf32x3") if head_dim < 40 else ("portable", "tf32x3", "bf16x3")  # those that serve it
    rows = [grid_case(head_dim, 1 << power) for power in range(8, 18)]
    for row in rows:
        row["rounds"] = []
    for _ in range(options.rounds):
        for row in rows:
            row["rounds"].append({"naive": run_in_f32(row, naive_attention, options.seconds),
                                  "peer": run_in_f32(row, F.scaled_dot_product_attention, options.seconds)})
        every_seq = ",".join(str(row["seq"]) for row in rows)
        bench = run_headroom(dict(rows[0], seq=every_seq), options, ",".join(names), "--warmup", "0")
        for ours in bench["rows"]:
            row = next(row for row in rows if row["seq"] == ours["seq"])
            row["rounds"][-1][ours["impl"]] = {key: ours[key] for key in GRID_KEYS}
    for row in rows:
        for name in names:
            served = [r for r in row["rounds"] if r["peer"]["status"] == r[name]["status"] == "ok"]
            if served:
                row[name] = {part + "_ratio": statistics.median(r["peer"][part + "_ms"] / r[name][part + "_ms"] for r in served)
                             for part in ("forward", "backward")}
    return rows, bench


def compare(case, options):
    rounds = []
    for _ in range(options.rounds):
        peer_forward, peer_backward = run_peer(case, options.seconds)
        bench = run_headroom(case, options, "sm90")
        free_order = run_headroom(case, options, "sm90", "--nondeterministic")
        ours = {key: bench["rows"][0][key] for key in DENSE_KEYS}
        ours["backward_nondeterministic_ms"] = free_order["rows"][0]["backward_ms"]
        rounds.append({"peer_forward_ms": peer_forward, "peer_backward_ms": peer_backward, "sm90": ours})
    middle = lambda key, peer: statistics.median(r[peer] / r["sm90"][key] for r in rounds)
    row = dict(case, sm90={"forward_ratio": middle("forward_ms", "peer_forward_ms"),
                           "backward_ratio": middle("backward_ms", "peer_backward_ms"),
                           "backward_nondeterministic_ratio": middle("backward_nondeterministic_ms", "peer_backward_ms")},
               rounds=rounds)
    return [row], bench


def means_of(rows):
    """By kind, row and pass; of the grid from GRID_MEANS_FROM tokens up, and by head size too."""
    values = {}
    for row in rows:
        if row["kind"] == "grid" and row["seq"] < GRID_MEANS_FROM:
            continue
        for name in IMPLEMENTATIONS:
            for key, ratio in row.get(name, {}).items():
                values.setdefault(f"{row['kind']} {name} {key}", []).append(ratio)
                if row["kind"] == "grid":
                    values.setdefault(f"grid {name} d{row['head_dim']} {key}", []).append(ratio)
    return {key: {"geometric_mean": geometric_mean(of), "least": min(of)} for key, of in values.items()}


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headroom", default="build/cuda/headroom", help="the program")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.2, help="per program, case and pass")
    parser.add_argument("--kinds", default="dense,dense 256,sparse,grid")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    kinds = options.kinds.split(",")
    parts = [(compare, case) for case in (*dense_cases(), *sparse_cases()) if case["kind"] in kinds]
    parts += [(compare_in_grid, head_dim) for head_dim in (16, 32, 64, 128) if "grid" in kinds]
    rows = []
    for measure, part in parts:
        try:
            measured, bench = measure(part, options)
        except subprocess.CalledProcessError as error:
            print(part, error.stderr.strip().splitlines()[-1:], file=sys.stderr, flush=True)
            continue
        rows += measured
        for row in measured:
            ratios = "; ".join(name + "".join(f" {key.split('_ratio')[0]} {ratio:.2f}x" for key, ratio in row[name].items())
                               for name in IMPLEMENTATIONS if name in row)
            print("{kind} {dtype} b{batch} h{heads}/{kv_heads} d{head_dim} {seq} {mask}: ".format(**row) + ratios, file=sys.stderr,
                  flush=True)
    means = means_of(rows)
    for key, value in means.items():
        print(f"{key}: mean {value['geometric_mean']:.3f}, least {value['least']:.3f}", file=sys.stderr)
    json.dump({"machine": bench["machine"], "commit": bench["commit"], "torch": torch.__version__,
               "cudnn": torch.backends.cudnn.version(), "means": means, "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
