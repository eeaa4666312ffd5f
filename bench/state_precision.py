#!/usr/bin/env python3
"""Trains the demo model with the state in f32, bf16 and 8 bits, and draws the losses: a picture for light and dark pages.

    bench/state_precision.py --program build/release/headroom    trains, keeps the losses, draws
    bench/state_precision.py                                     draws what was kept
"""
import argparse
import json
import math
import subprocess
import tempfile

STATES = {"f32": "state f32", "bf16": "state bf16", "8bit": "state 8bit"}
RATES = ["1e-3", "1e-4"]
STEPS = 400
TRAIN = ["train", "--model", "demo", "--data", "recall", "--context", "1024", "--steps", str(STEPS), "--dtype", "bf16"]
MEAN = 10  # steps of a point
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #5d646e }
.card { fill: #ffffff; stroke: #e3e1dc }
.title { font-size: 14px; font-weight: 600; fill: #1c1f24 }
.grid { stroke: #ecebe7 }
.f32 { --c: #c9b8a8; --w: 6 } .bf16 { --c: #2f6fab; --w: 2 } .eight { --c: #d2591f; --w: 1.5; stroke-dasharray: 5 4 }
.line { fill: none; stroke: var(--c); stroke-width: var(--w); stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
  text { fill: #a0a6af } .card { fill: #1b1e23; stroke: #30343b } .title { fill: #e9e8e4 } .grid { stroke: #30343b }
  .f32 { --c: #5d5248 } .bf16 { --c: #62a6e6 } .eight { --c: #f0824a }
}
"""
LEFT, TOP, WIDTH, HEIGHT, PANEL = 56, 40, 360, 260, 450  # of a panel's plot; from panel to panel
TICKS = [0.0625, 0.125, 0.25, 0.5, 1, 2, 4, 8]


def train(program):
    runs = []
    for rate in RATES:
        for state in STATES:
            with tempfile.TemporaryDirectory() as folder:
                arguments = TRAIN + ["--learning-rate", rate, "--state", state, "--out", f"{folder}/run", "--json"]
                result = json.loads(subprocess.run([program] + arguments, check=True, capture_output=True).stdout)
                with open(f"{folder}/run/metrics.jsonl", encoding="utf-8") as file:
                    losses = [round(json.loads(line)["loss"], 5) for line in file]
            runs.append({"learning_rate": rate, "state": state, "held_out_loss": result["held_out_loss"], "losses": losses})
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    return {"version": version, "command": "headroom " + " ".join(TRAIN), "runs": runs}


def means(losses):
    return [(end, sum(losses[end - MEAN:end]) / MEAN) for end in range(MEAN, len(losses) + 1, MEAN)]


def panel(left, title, runs):
    x = lambda step: left + WIDTH * step / STEPS
    y = lambda loss: TOP + HEIGHT * math.log2(TICKS[-1] / loss) / math.log2(TICKS[-1] / TICKS[0])
    out = [f'<text class="title" x="{left}" y="20">{title}</text>']
    for tick in TICKS:
        out.append(f'<path class="grid" d="M{left} {y(tick):.1f}h{WIDTH}"/>'
                   f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for step in range(0, STEPS + 1, 100):
        out.append(f'<text x="{x(step):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{step}</text>')
    out.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle">steps; loss, mean of {MEAN}</text>')
    for run in runs:
        path = "L".join(f"{x(step):.1f} {y(loss):.1f}" for step, loss in means(run["losses"]))
        out.append(f'<path class="line {run["state"].replace("8bit", "eight")}" d="M{path}"/>')
    return out


def legend(left):
    out = []
    for i, (state, text) in enumerate(STATES.items()):
        out.append(f'<path class="line {state.replace("8bit", "eight")}" d="M{left} {TOP + 14 + 20 * i}h28"/>'
                   f'<text x="{left + 36}" y="{TOP + 18 + 20 * i}">{text}</text>')
    return out


def picture(runs):
    parts = []
    for i, rate in enumerate(RATES):
        mine = [run for run in runs if run["learning_rate"] == rate]
        parts += panel(LEFT + i * PANEL, f"Learning rate {rate}", mine)
    parts += legend(LEFT + PANEL + WIDTH - 110)
    width, height = LEFT + PANEL + WIDTH + 20, TOP + HEIGHT + 50
    title = "Loss of the demo model over 400 steps with the training state in f32, bf16 and 8 bits"
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
                      f'role="img" aria-label="{title}">', f"<title>{title}</title>", f"<style>{STYLE}</style>",
                      f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>', *parts, "</svg>", ""])


def table(runs):
    yield "| learning rate | state | mean loss of the last 50 steps | held-out loss | largest difference from f32, means of 10 steps |"
    yield "|---|---|---|---|---|"
    for rate in RATES:
        wide = next(run for run in runs if run["learning_rate"] == rate and run["state"] == "f32")
        for run in (run for run in runs if run["learning_rate"] == rate):
            apart = max(abs(a - b) for (_, a), (_, b) in zip(means(run["losses"]), means(wide["losses"])))
            yield (f"| {rate} | {run['state']} | {sum(run['losses'][-50:]) / 50:.4f} | {run['held_out_loss']:.4f} | "
                   f"{'' if run is wide else f'{apart:.3f}'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program")
    parser.add_argument("--results", default="bench/results/state_precision.json")
    parser.add_argument("--out", default="docs/images/state_precision.svg")
    options = parser.parse_args()
    if options.program:
        with open(options.results, "w", encoding="utf-8") as file:
            json.dump(train(options.program), file)
            file.write("\n")
    with open(options.results, encoding="utf-8") as file:
        runs = json.load(file)["runs"]
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(picture(runs))
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
