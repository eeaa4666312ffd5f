#!/usr/bin/env python3
"""Headroom's attention on a Hopper GPU beside FlashAttention's and cuDNN's kernels, in one run on one machine.

Needs the PyTorch of the machine with the GPU and flash-attn-4 with what it imports on PYTHONPATH; nothing in the build or the tests
uses it. bf16. In every round a case runs in FlashAttention (free order, then deterministic), in cuDNN where it serves the mask, and in
Headroom (free order, then deterministic); in every other round deterministic comes first. Ratios are of the medians over the rounds.
PyTorch asks cuDNN for no fixed order. First calls are not timed. All queue forward and backward in turn and take the time of each
from the GPU, on copies of the inputs that do not fit the cache twice over: backward has another copy than the forward before it.

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

# batch, sequence (and its keys, where there are others), query heads, K/V heads, head size, mask; documents:N are N uneven ones
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
1 2048/65536 32 8 128 full
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
    for key in ("batch", "seq", "keys", "heads", "kv_heads", "head_dim"):
        command += ["--" + key.replace("_", "-"), str(case[key])]
    if not deterministic:
        command.append("--nondeterministic")
    bench = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return bench, bench["rows"][0]


def copies_of(torch, case):
    """As many as bench attention has."""
    numbers = 2 * case["batch"] * case["head_dim"] * (case["seq"] * case["heads"] + case["keys"] * case["kv_heads"])
    return range(max(1, min(16, 2 * torch.cuda.get_device_properties(0).L2_cache_size // (2 * numbers) + 1)))


def inputs(torch, case, batch):
    """Query, key, value and gradient of the output."""
    return [torch.randn(*batch, case[rows], case[heads], case["head_dim"], device="cuda", dtype=torch.bfloat16)
            for rows, heads in (("seq", "heads"), ("keys", "kv_heads"), ("keys", "kv_heads"), ("seq", "heads"))]


def timed(torch, case, forward, backward, seconds):
    """Medians of forward(i) and backward(i + 1) in turn, queued without waiting; i says which copy."""
    def loop(count):
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(3)] for _ in range(count)]
        for i, event in enumerate(events):
            event[0].record()
            forward(i)
            event[1].record()
            backward(i + 1)
            event[2].record()
        torch.cuda.synchronize()
        return [(e[0].elapsed_time(e[1]), e[1].elapsed_time(e[2])) for e in events]

    loop(2 + len(copies_of(torch, case)))
    each = sum(loop(1)[0])
    pairs = loop(max(5, min(200, int(seconds * 1e3 / each))))
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def flash_functions(torch, case, lengths):
    from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd
    copies = [inputs(torch, case, () if lengths else (case["batch"],)) for _ in copies_of(torch, case)]
    more = {"causal": case["mask"] != "full"}
    if case["mask"].startswith("window"):
        more = {"window_size_left": int(case["mask"].split(":")[1]) - 1, "window_size_right": 0}
    if lengths:
        starts = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
        more.update(cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=max(lengths), max_seqlen_k=max(lengths))

    def forward(i):
        return _flash_attn_fwd(*copies[i % len(copies)][:3], return_lse=True, **more)[:2]

    outputs = [forward(i) for i in range(len(copies))]

    def backward(i, deterministic):
        q, k, v, gradient = copies[i % len(copies)]
        output, lse = outputs[i % len(copies)]
        return _flash_attn_bwd(q, k, v, output, gradient, lse, deterministic=deterministic, **more)

    return forward, backward


def cudnn_functions(torch, case):
    if case["mask"] not in ("full", "causal"):
        raise RuntimeError("cuDNN is asked for no such mask")
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    copies = [[tensor.transpose(1, 2).requires_grad_(True) for tensor in inputs(torch, case, (case["batch"],))]
              for _ in copies_of(torch, case)]

    def forward(i):
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return F.scaled_dot_product_attention(*copies[i % len(copies)][:3], is_causal=case["mask"] == "causal",
                                                  enable_gqa=case["heads"] != case["kv_heads"])

    outputs = [forward(i) for i in range(len(copies))]

    def backward(i):
        torch.autograd.grad(outputs[i % len(copies)], copies[i % len(copies)][:3], copies[i % len(copies)][3], retain_graph=True)

    return forward, backward


def of_orders(times):
    """Forward and backward by whether the order is fixed; forward is the same in both."""
    return dict(zip(PARTS, (statistics.mean((times[False][0], times[True][0])), times[False][1], times[True][1])))


def compare(torch, case, options):
    lengths = uneven(int(case["mask"].split(":")[1]), case["seq"]) if case["mask"].startswith("documents") else None
    rounds = []
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as documents:
        documents.write("".join(f"{length}\n" for length in lengths or []))
        documents.flush()
        name = documents.name if lengths else None
        flash_forward, flash_backward = flash_functions(torch, case, lengths)
        try:
            cudnn = cudnn_functions(torch, case)
        except RuntimeError:
            cudnn = None
        for number in range(options.rounds):
            orders = (False, True) if number % 2 == 0 else (True, False)  # what ran before decides the clocks
            flash = {fixed: timed(torch, case, flash_forward, lambda i: flash_backward(i, fixed), options.seconds) for fixed in orders}
            one = {"flash": of_orders(flash)}
            if cudnn:
                one["cudnn"] = dict(zip(PARTS, timed(torch, case, *cudnn, options.seconds)))
            ours = {}
            for fixed in orders:
                bench, row = run_headroom(case, options, name, fixed)
                ours[fixed] = (row["forward_ms"], row["backward_ms"])
            rounds.append({**one, "headroom": of_orders(ours)})
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
        batch, lengths, *heads, mask = line.split()
        seq, _, keys = lengths.partition("/")
        names = ("batch", "seq", "keys", "heads", "kv_heads", "head_dim")
        case = {**dict(zip(names, map(int, (batch, seq, keys or seq, *heads)))), "mask": mask}
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
