#!/usr/bin/env python3
"""Trains the demo model in several ways and draws their losses: a picture for light and dark pages.

    state      the state in f32, bf16 and 8 bits, on the CPU
    devices    f32 on the CPU and bf16 on a GPU

    bench/loss_curves.py state --program build/release/headroom    trains, keeps the losses, draws
    bench/loss_curves.py state                                     draws what was kept
"""
import argparse
import json
import math
import subprocess
import tempfile

DEMO = ["train", "--model", "demo", "--data", "recall", "--context", "1024"]
# A way: its name, and what it adds to the command. The first way of a panel is what the others are compared with.
CURVES = {
    "state": {
        "title": "Loss of the demo model over 400 steps with the training state in f32, bf16 and 8 bits",
        "name": "state_precision", "steps": 400,
        "panels": [{"title": f"Learning rate {rate}",
                    "ways": {f"state {state}": ["--dtype", "bf16", "--learning-rate", rate, "--state", state]
                             for state in ("f32", "bf16", "8bit")}} for rate in ("1e-3", "1e-4")]},
    "devices": {
        "title": "Loss of the demo model over 200 steps in f32 on a CPU and in bf16 on a GPU",
        "name": "device_losses", "steps": 200,
        "panels": [{"title": "Learning rate 3e-4",
                    "ways": {"f32, CPU": ["--dtype", "f32"], "bf16, GPU": ["--dtype", "bf16", "--device", "cuda:0"]}}]},
}
MEAN = 10  # steps of a point
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #5d646e }
.card { fill: #ffffff; stroke: #e3e1dc }
.title { font-size: 14px; font-weight: 600; fill: #1c1f24 }
.grid { stroke: #ecebe7 }
.way0 { --c: #c9b8a8; --w: 6 } .way1 { --c: #2f6fab; --w: 2 } .way2 { --c: #d2591f; --w: 1.5; stroke-dasharray: 5 4 }
.line { fill: none; stroke: var(--c); stroke-width: var(--w); stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
  text { fill: #a0a6af } .card { fill: #1b1e23; stroke: #30343b } .title { fill: #e9e8e4 } .grid { stroke: #30343b }
  .way0 { --c: #5d5248 } .way1 { --c: #62a6e6 } .way2 { --c: #f0824a }
}
"""
LEFT, TOP, WIDTH, HEIGHT, PANEL = 56, 40, 360, 260, 450  # of a panel's plot; from panel to panel
TICKS = [0.0625, 0.125, 0.25, 0.5, 1, 2, 4, 8]


def train(program, curves):
    command = DEMO + ["--steps", str(curves["steps"])]
    runs = []
    for panel in curves["panels"]:
        for way, more in panel["ways"].items():
            with tempfile.TemporaryDirectory() as folder:
                arguments = command + more + ["--out", f"{folder}/run", "--json"]
                result = json.loads(subprocess.run([program] + arguments, check=True, capture_output=True).stdout)
                with open(f"{folder}/run/metrics.jsonl", encoding="utf-8") as file:
                    losses = [round(json.loads(line)["loss"], 5) for line in file]
            runs.append({"panel": panel["title"], "way": way, "held_out_loss": result["held_out_loss"], "losses": losses})
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    return {"version": version, "command": "headroom " + " ".join(command), "runs": runs}


def means(losses):
    return [(end, sum(losses[end - MEAN:end]) / MEAN) for end in range(MEAN, len(losses) + 1, MEAN)]


def draw_panel(left, title, steps, runs):
    x = lambda step: left + WIDTH * step / steps
    y = lambda loss: TOP + HEIGHT * math.log2(TICKS[-1] / loss) / math.log2(TICKS[-1] / TICKS[0])
    out = [f'<text class="title" x="{left}" y="20">{title}</text>']
    for tick in TICKS:
        out.append(f'<path class="grid" d="M{left} {y(tick):.1f}h{WIDTH}"/>'
                   f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for step in range(0, steps + 1, steps // 4):
        out.append(f'<text x="{x(step):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{step}</text>')
    out.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle">steps; loss, mean of {MEAN}</text>')
    for i, run in enumerate(runs):
        path = "L".join(f"{x(step):.1f} {y(loss):.1f}" for step, loss in means(run["losses"]))
        out.append(f'<path class="line way{i}" d="M{path}"/>')
    return out


def draw_legend(left, ways):
    out = []
    for i, way in enumerate(ways):
        out.append(f'<path class="line way{i}" d="M{left} {TOP + 14 + 20 * i}h28"/>'
                   f'<text x="{left + 36}" y="{TOP + 18 + 20 * i}">{way}</text>')
    return out


def picture(curves, runs):
    parts = []
    last = PANEL * (len(curves["panels"]) - 1)
    for i, panel in enumerate(curves["panels"]):
        parts += draw_panel(LEFT + i * PANEL, panel["title"], curves["steps"], [run for run in runs if run["panel"] == panel["title"]])
    parts += draw_legend(LEFT + last + WIDTH - 110, curves["panels"][0]["ways"])
    width, height = LEFT + last + WIDTH + 20, TOP + HEIGHT + 50
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
                      f'role="img" aria-label="{curves["title"]}">', f'<title>{curves["title"]}</title>', f"<style>{STYLE}</style>",
                      f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>', *parts, "</svg>", ""])


def table(curves, runs):
    yield "| panel | way | mean loss of the last 50 steps | held-out loss | largest difference from the first, means of 10 steps |"
    yield "|---|---|---|---|---|"
    for panel in curves["panels"]:
        first, *others = [run for run in runs if run["panel"] == panel["title"]]
        for run in (first, *others):
            apart = max(abs(a - b) for (_, a), (_, b) in zip(means(run["losses"]), means(first["losses"])))
            held_out = run["held_out_loss"]  # none in a run whose answer was not kept
            yield (f"| {run['panel']} | {run['way']} | {sum(run['losses'][-50:]) / 50:.4f} | "
                   f"{'' if held_out is None else f'{held_out:.4f}'} | {'' if run is first else f'{apart:.3f}'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("curves", choices=CURVES)
    parser.add_argument("--program", help="the program, to train anew")
    options = parser.parse_args()
    curves = CURVES[options.curves]
    results = f"bench/results/{curves['name']}.json"
    if options.program:
        with open(results, "w", encoding="utf-8") as file:
            json.dump(train(options.program, curves), file)
            file.write("\n")
    with open(results, encoding="utf-8") as file:
        runs = json.load(file)["runs"]
    with open(f"docs/images/{curves['name']}.svg", "w", encoding="utf-8") as file:
        file.write(picture(curves, runs))
    print("\n".join(table(curves, runs)))


if __name__ == "__main__":
    main()
