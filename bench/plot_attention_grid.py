#!/usr/bin/env python3
"""The f32 grid of bench/peers/attention_cuda.py as a picture for light and dark pages, and as a Markdown table.

    bench/plot_attention_grid.py > table.md
"""
import argparse
import json
import math
import statistics

SERIES = {"naive": "scores kept", "peer": "PyTorch SDPA", "portable": "portable", "tf32x3": "tf32x3",
          "bf16x3": "bf16x3"}
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #5d646e }
.card { fill: #ffffff; stroke: #e3e1dc }
.title { font-size: 14px; font-weight: 600; fill: #1c1f24 }
.grid { stroke: #ecebe7 }
.naive { --c: #d2591f } .peer { --c: #6f6f6a } .portable { --c: #1f9a76 } .tf32x3 { --c: #2f6fab } .bf16x3 { --c: #8a4fc2 }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round }
.dot, .label { fill: var(--c) }
.label { font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #a0a6af } .card { fill: #1b1e23; stroke: #30343b } .title { fill: #e9e8e4 } .grid { stroke: #30343b }
  .naive { --c: #f0824a } .peer { --c: #b4b4ae } .portable { --c: #3cbf97 } .tf32x3 { --c: #62a6e6 } .bf16x3 { --c: #b98ae8 }
  .label { fill: var(--c) }
}
"""
LEFT, TOP, WIDTH, HEIGHT, PANEL = 76, 40, 290, 270, 480  # of a panel's plot; from panel to panel


def middle(row, name, key):
    """The median of the rounds; nothing where one did not run."""
    rounds = [r[name] for r in row["rounds"] if name in r]
    return statistics.median(r[key] for r in rounds) if rounds and all(r["status"] == "ok" for r in rounds) else None


def bytes_text(value):
    for unit, size in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if value >= 1 << size:
            return f"{value / (1 << size):.3g} {unit}"
    return f"{value:.0f} B"


def time_text(ms):
    return f"{ms / 1e3:.3g} s" if ms >= 1e3 else f"{ms:.3g} ms"


def apart(ends, gap=14):
    """Heights of the labels, far enough from each other, in the order of their lines."""
    places = []
    for y, name in sorted(ends):
        places.append((max(y, places[-1][0] + gap) if places else y, name))
    return places


def panel(left, title, seqs, values, labels, ticks, text):
    """values: {name: [(seq, value)]}; a line that ends before the last size ends in a cross."""
    low, high = math.log2(min(ticks)), math.log2(max(ticks))
    x = lambda seq: left + WIDTH * math.log2(seq / seqs[0]) / math.log2(seqs[-1] / seqs[0])
    y = lambda value: TOP + HEIGHT * (high - math.log2(value)) / (high - low)
    out = [f'<text class="title" x="{left}" y="20">{title}</text>']
    for tick in ticks:
        out.append(f'<path class="grid" d="M{left} {y(tick):.1f}h{WIDTH}"/>'
                   f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{text(tick)}</text>')
    for seq in seqs[::-2]:
        label = f"{seq // 1024}K" if seq >= 1024 else seq
        out.append(f'<text x="{x(seq):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{label}</text>')
    out.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle">tokens in a sequence</text>')
    ends = []
    for name, points in values.items():
        path = "L".join(f"{x(seq):.1f} {y(value):.1f}" for seq, value in points)
        out.append(f'<path class="line {name}" d="M{path}"/>')
        out += [f'<circle class="dot {name}" cx="{x(seq):.1f}" cy="{y(value):.1f}" r="2.5"/>' for seq, value in points]
        end_x, end_y = x(points[-1][0]), y(points[-1][1])
        if points[-1][0] == seqs[-1]:
            ends.append((end_y, name))
            continue
        out.append(f'<path class="line {name}" d="M{end_x - 5:.1f} {end_y - 5:.1f}l10 10m0-10l-10 10"/>'
                   f'<text class="label {name}" x="{end_x + 10:.1f}" y="{end_y + 14:.1f}">{labels[name]}</text>'
                   f'<text x="{end_x + 10:.1f}" y="{end_y + 29:.1f}">then out of memory</text>')
    for place, name in apart(ends):
        out.append(f'<text class="label {name}" x="{left + WIDTH + 8}" y="{place + 4:.1f}">{labels[name]}</text>')
    return out


def powers(values, base):
    """Powers of the base from below the least value to above the largest."""
    first, last = math.floor(math.log(min(values), base)), math.ceil(math.log(max(values), base))
    return [base ** power for power in range(first, last + 1)]


def picture(rows, head_dim):
    rows = sorted((row for row in rows if row["head_dim"] == head_dim), key=lambda row: row["seq"])
    seqs = [row["seq"] for row in rows]

    def series(value):
        lines = {name: [(row["seq"], value(row, name)) for row in rows if value(row, name)] for name in SERIES}
        return {name: points for name, points in lines.items() if points}

    added = series(lambda row, name: middle(row, name, "added_bytes"))
    milliseconds = series(lambda row, name: sum(middle(row, name, part) or 0 for part in ("forward_ms", "backward_ms")))
    ours = [name for name in added if name not in ("naive", "peer")]
    labels = SERIES
    if all(added[name] == added[ours[0]] for name in ours):
        added = {name: points for name, points in added.items() if name not in ours[:-1]}
        labels = dict(SERIES, **{ours[-1]: "ours"})
    every = lambda lines: [value for points in lines.values() for _, value in points]
    parts = panel(LEFT, "Memory added by forward and backward", seqs, added, labels, powers(every(added), 16), bytes_text)
    parts += panel(LEFT + PANEL, "Time of forward and backward", seqs, milliseconds, SERIES, powers(every(milliseconds), 10),
                   time_text)
    width, height = LEFT + PANEL + WIDTH + 110, TOP + HEIGHT + 50
    title = f"f32 attention on a GPU, batch 8, one head of {head_dim}: memory and time over the length of the sequence"
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
                      f'role="img" aria-label="{title}">', f"<title>{title}</title>", f"<style>{STYLE}</style>",
                      f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>', *parts, "</svg>", ""])


def table(rows):
    yield "| seq | head_dim | scores kept, ms | PyTorch SDPA, ms | `portable`, ms | `tf32x3`, ms | `bf16x3`, ms | added: scores kept | SDPA | ours |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in sorted(rows, key=lambda r: (r["head_dim"], r["seq"])):
        cells = [f"{row['seq']:,}", str(row["head_dim"])]
        for name in SERIES:
            if name not in row["rounds"][0]:
                cells.append("")
                continue
            times = [middle(row, name, part) for part in ("forward_ms", "backward_ms")]
            cells.append("out of memory" if None in times else " / ".join(f"{ms:.3g}" if ms < 100 else f"{ms:,.0f}" for ms in times))
        for name in ("naive", "peer", "tf32x3"):
            added = middle(row, name, "added_bytes")
            cells.append("" if added is None else bytes_text(added))
        yield "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", default="bench/results/attention_cuda_peers.json")
    parser.add_argument("--out", default="docs/images/attention_f32_grid.svg")
    parser.add_argument("--head-dim", type=int, default=64, help="of the picture; the table has all")
    options = parser.parse_args()
    with open(options.results, encoding="utf-8") as file:
        rows = [row for row in json.load(file)["rows"] if row["kind"] == "grid"]
    if not rows:
        parser.error(f"{options.results} has no rows of the kind grid")
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(picture(rows, options.head_dim))
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
