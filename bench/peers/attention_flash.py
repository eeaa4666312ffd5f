#!/usr/bin/env python3
"""Headroom's attention on a Hopper GPU beside FlashAttention's and cuDNN's kernels, in one run on one machine.

Needs the PyTorch of the machine with the GPU and flash-attn-4 with what it imports on PYTHONPATH; nothing in the build or the tests
uses it. bf16. In every round a case runs in FlashAttention (free order, then deterministic), in cuDNN where it serves the mask, and in
Headroom (free order, then deterministic); ratios are of the medians over the rounds. PyTorch asks cuDNN for no fixed order. First
calls are not timed.

    bench/peers/attention_flash.py --headroom build/cuda/headroom > bench/results/attention_flash_peers.json
"""
import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile

# batch, sequence, query heads, K/V heads, head size, mask; documents:N are N uneven ones
SHAPES = """
4 4096 16 16 128 causal
1 16384 16 16 128 causal
1 16384 16 16 128 full
2 8192 32 8 128 causal
1 32768 32 8 128 causal
8 2048 32 8 128 causal
1 16384 32 8 64 causal
1 16384 32 1 128 causal
2 8192 16 8 256 causal
1 32768 16 16 128 documents:16
1 32768 32 8 128 documents:64
1 16384 16 16 128 window:1024
1 16384 32 8 128 window:4096
32 512 32 8 128 causal
16 1024 16 16 128 causal
3 5003 24 8 128 causal
1 12288 40 8 128 causal
2 8192 24 24 96 causal
2 8192 16 16 192 causal
8 2048 64 8 64 causal
1 131072 4 4 128 causal
4 4096 32 8 128 causal
1 65536 16 4 128 causal
16 1024 16 16 128 full
1 65536 8 8 64 full
"""
PARTS = ("forward", "free", "deterministic")


def uneven(count, total):
    draw = random.Random(count)
    weights = [draw.random() ** 2 + 0.05 for _ in range(count)]
    lengths = [int(total * weight / sum(weights)) for weight in weights]
    lengths[-1] += total - sum(lengths)
    return lengths


def run_headroom(case, options, documents, deterministic):
    mask = f"causal+documents:{documents}" if documents else case["mask"]
    command = [options.headroom, "bench", "attention", "--device", "cuda:0", "--impl", "sm90", "--json", "--steps", "200", "--warmup",
               "3", "--max-seconds", str(options.seconds), "--dtype", "bf16", "--mask", mask]
    for key in ("batch", "seq", "heads", "kv_heads", "head_dim"):
        command += ["--" + key.replace("_", "-"), str(case[key])]
    if not deterministic:
        command.append("--nondeterministic")
    bench = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return bench, bench["rows"][0]


def timed(torch, forward, backward, seconds):
    """Medians of forward and backward in turn, queued without waiting."""
    def loop(count):
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(3)] for _ in range(count)]
        for event in events:
            event[0].record()
            forward()
            event[1].record()
            backward()
            event[2].record()
        torch.cuda.synchronize()
        return [(e[0].elapsed_time(e[1]), e[1].elapsed_time(e[2])) for e in events]

    loop(3)
    each = sum(loop(1)[0])
    pairs = loop(max(5, min(200, int(seconds * 1e3 / each))))
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def flash_functions(torch, case, lengths):
    from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd
    rows = (case["seq"],) if lengths else (case["batch"], case["seq"])
    q, gradient, k, v = (torch.randn(*rows, case[heads], case["head_dim"], device="cuda", dtype=torch.bfloat16)
                         for heads in ("heads", "heads", "kv_heads", "kv_heads"))
    more = {"causal": case["mask"] != "full"}
    if case["mask"].startswith("window"):
        more = {"window_size_left": int(case["mask"].split(":")[1]) - 1, "window_size_right": 0}
    if lengths:
        starts = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
        more.update(cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=max(lengths), max_seqlen_k=max(lengths))
    output, lse = _flash_attn_fwd(q, k, v, return_lse=True, **more)[:2]
    return (lambda: _flash_attn_fwd(q, k, v, return_lse=True, **more),
            lambda deterministic: _flash_attn_bwd(q, k, v, output, gradient, lse, deterministic=deterministic, **more))


def cudnn_functions(torch, case):
    if case["mask"] not in ("full", "causal"):
        return None
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    q, k, v, gradient = (torch.randn(case["batch"], case["seq"], case[heads], case["head_dim"], device="cuda", dtype=torch.bfloat16)
                         .transpose(1, 2).requires_grad_(True) for heads in ("heads", "kv_heads", "kv_heads", "heads"))
    kept = []

    def forward():
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            kept[:] = [F.scaled_dot_product_attention(q, k, v, is_causal=case["mask"] == "causal",
                                                      enable_gqa=case["heads"] != case["kv_heads"])]

    return forward, lambda: torch.autograd.grad(kept[0], (q, k, v), gradient)


def compare(torch, case, options):
    lengths = uneven(int(case["mask"].split(":")[1]), case["seq"]) if case["mask"].startswith("documents") else None
    rounds = []
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as documents:
        documents.write("".join(f"{length}\n" for length in lengths or []))
        documents.flush()
        name = documents.name if lengths else None
        flash_forward, flash_backward = flash_functions(torch, case, lengths)
        cudnn = cudnn_functions(torch, case)
        for _ in range(options.rounds):
            free = timed(torch, flash_forward, lambda: flash_backward(False), options.seconds)
            fixed = timed(torch, flash_forward, lambda: flash_backward(True), options.seconds)
            one = {"flash": dict(zip(PARTS, (statistics.mean((free[0], fixed[0])), free[1], fixed[1])))}
            if cudnn:
                try:
                    times = timed(torch, *cudnn, options.seconds)
                    one["cudnn"] = {"forward": times[0], "free": times[1]}
                except RuntimeError:
                    cudnn = None
            bench, free = run_headroom(case, options, name, False)
            _, fixed = run_headroom(case, options, name, True)
            one["headroom"] = dict(zip(PARTS, (statistics.mean((free["forward_ms"], fixed["forward_ms"])), free["backward_ms"],
                                               fixed["backward_ms"])))
            rounds.append(one)
    sides = [side for side in rounds[0] if all(side in r for r in rounds)]
    middle = {side: {part: statistics.median(r[side][part] for r in rounds) for part in rounds[0][side]} for side in sides}
    ratios = {side: {part: middle[side][part] / middle["headroom"][part] for part in middle[side]} for side in middle
              if side != "headroom"}
    return {**case, "milliseconds": middle, "ratios": ratios, "rounds": rounds}, bench


def means_of(rows):
    values = {}
    for row in rows:
        for side, ratios in row["ratios"].items():
            for part, ratio in ratios.items():
                values.setdefault(f"{side} {part}", []).append(ratio)
    return {key: {"geometric_mean": math.exp(statistics.mean(map(math.log, of))), "least": min(of), "cases": len(of)}
            for key, of in values.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headroom", default="build/cuda/headroom", help="the program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="per side, case and round")
    parser.add_argument("--shapes", default=SHAPES, help="lines or a list with ';' of: batch seq heads kv_heads head_dim mask")
    options = parser.parse_args()
    import torch
    torch.manual_seed(0)
    rows = []
    for line in filter(str.strip, options.shapes.replace(";", "\n").splitlines()):
        numbers, mask = line.split()[:-1], line.split()[-1]
        case = {**dict(zip(("batch", "seq", "heads", "kv_heads", "head_dim"), map(int, numbers))), "mask": mask}
        row, bench = compare(torch, case, options)
        rows.append(row)
        torch.cuda.empty_cache()
        print(line, " ".join(f"{side} {part} {ratio:.3f}" for side, ratios in row["ratios"].items() for part, ratio in ratios.items()),
              "ms", " ".join(f"{t:.3f}" for t in row["milliseconds"]["headroom"].values()), file=sys.stderr, flush=True)
    means = means_of(rows)
    for key, value in means.items():
        print(f"{key}: mean {value['geometric_mean']:.3f}, least {value['least']:.3f} of {value['cases']}", file=sys.stderr)
    json.dump({"machine": bench["machine"], "commit": bench["commit"], "torch": torch.__version__, "means": means, "rows": rows},
              sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
