"""Opens the page of every command in headless Chromium and uses it; its numbers are those of the command's JSON. Usage:
browser.py HEADROOM; exit code 77 where Chromium is missing."""

import json
import os
import pathlib
import sys
import tempfile

import chromium
from page_checks import check, check_page, check_quiet, data_of, failures, figure, run, section, table


def check_train(browser, program, folder):
    # A path whose name tries to leave the script element and become markup.
    data = folder / "<" / "script><img src=x onerror=hacked=1>.txt"
    data.parent.mkdir()
    data.write_text("All that is gold does not glitter. " * 64)
    path = folder / "train.html"
    result = run(program, "train", "--model", "demo", "--data", data, "--context", 128, "--steps", 4, "--budget", "64MiB",
                 "--out", folder / "run", "--html", path, "--json")
    browser.open(path)
    check_quiet(browser, path)
    check(browser.ask("document.querySelector('.subtitle').textContent").find(str(data)) >= 0, "the data's name is not shown")
    check(figure(browser, "planned") == result["planned_bytes"] + result["planned_host_bytes"], "planned")
    check(figure(browser, "budget") == result["budget_bytes"], "budget")
    check(figure(browser, "scores and logits held") == result["naive_bytes"], "naive")
    check(figure(browser, "live peak") == result["live_peak_bytes"], "live peak")
    check(figure(browser, "loss") == f"{result['last_loss']:.4f}", "loss")
    step = section(browser, "timeline")
    check(max(sum(column) for column in zip(*step["live"])) == result["live_peak_bytes"], "peak of the micro-step")
    loss = section(browser, "lines")["series"][0]["points"]
    metrics = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    check(loss == [[line["step"], line["loss"]] for line in metrics], "the loss curve is not metrics.jsonl:", loss)
    check_page(browser, path)


def check_plan(browser, program, folder):
    path = folder / "plan.html"
    result = run(program, "plan", "--model", "demo", "--context", 2048, "--batch", 2, "--budget", "24MiB", "--host-budget", "1GiB",
                 "--dtype", "bf16", "--compare", "--html", path, "--json")
    browser.open(path)
    for label, key in (("arena", "arena_bytes"), ("live peak", "live_peak_bytes"), ("budget", "budget_bytes"),
                       ("on the host", "host_bytes")):
        check(figure(browser, label) == result[key], label, figure(browser, label), "not", result[key])
    check(figure(browser, "a step") == milliseconds(result["step_seconds"]), "a step:", figure(browser, "a step"))
    check(figure(browser, "largest context") == f"{result['max_context']:,}", "largest context")
    notes = browser.ask("[...document.querySelectorAll('.notice')].map((note) => note.textContent)")
    check(notes == [result["warning"]], "notes:", notes)
    step = section(browser, "timeline")
    at_peak = {name: column[step["peak"]] for name, column in zip(step["categories"], step["live"])}
    check({name: size for name, size in at_peak.items() if size} == result["by_category"], "categories at the peak:", at_peak)
    points = [point for series in section(browser, "lines")["series"] for point in series["points"]]
    check([result["context"], result["arena_bytes"]] in points, "the plan of one layer is not on the chart:", points)
    check(table(browser, "Stages") == [[row["stage"], row["live_bytes"], row["peak_bytes"]] for row in result["by_stage"]], "stages")
    check([row[:2] for row in table(browser, "Comparison")] == [[row["strategy"], row["bytes"]] for row in result["compare"]],
          "comparison")
    check([[row[0], row[1], row[3]] for row in table(browser, "Single changes")] ==
          [[row["change"], row["saved_bytes"], "yes" if row["fits"] else "no"] for row in result["advice"]], "single changes")
    check_page(browser, path)


def milliseconds(seconds):
    return f"{1e3 * seconds:.0f} ms"


def check_profile(browser, program, folder):
    path = folder / "profile.html"
    result = run(program, "profile", "--model", "demo", "--context", 512, "--budget", "64MiB", "--steps", 1, "--html", path, "--json")
    browser.open(path)
    outside = result["resident_peak_bytes"] - result["reserved_bytes"] - result["host_bytes"]
    for label, size in (("arena", result["reserved_bytes"]), ("live peak", result["live_peak_bytes"]),
                        ("resident", result["resident_peak_bytes"]), ("outside the arenas", outside)):
        check(figure(browser, label) == size, label, figure(browser, label), "not", size)
    check(figure(browser, "a step") == f"{1e3 * result['step_seconds']:.1f} ms", "a step:", figure(browser, "a step"))
    step = section(browser, "timeline")
    check(max(sum(column) for column in zip(*step["live"])) == result["live_peak_bytes"], "peak of the micro-step")
    check(table(browser, "Stages") == [[row["stage"], row["planned_peak_bytes"], row["peak_bytes"], f"{1e3 * row['seconds']:.2f}"]
                                       for row in result["stages"]], "stages")
    check([row[:4] for row in table(browser, "Kernels")] ==
          [[row["kernel"], f"{row['calls']:,}", f"{1e3 * row['seconds']:.2f}", f"{1e3 * row['predicted_seconds']:.2f}"]
           for row in result["kernels"]], "kernels")
    check_page(browser, path)


def check_bench(browser, result, sizes, named, time_of, bytes_key):
    """Both charts of a bench against its rows: one series per name, one point per size."""
    for title, value in (("Time", time_of), ("Memory", lambda row: row[bytes_key])):
        series = section(browser, "lines", title)["series"]
        expected = {}
        for row in result["rows"]:
            expected.setdefault(named(row), []).append([row[sizes], value(row)])
        check({one["name"]: one["points"] for one in series} == expected, title, series, "not", expected)
    check(len(table(browser, "Every case")) == len(result["rows"]), "cases")


def check_bench_attention(browser, program, folder):
    path = folder / "attention.html"
    for seq in ("64", "64,80", "64,128,256"):  # one point; axes too narrow for powers of two or ten; a usual one
        result = run(program, "bench", "attention", "--seq", seq, "--head-dim", 16, "--warmup", 0, "--steps", 1, "--html", path,
                     "--json")
        browser.open(path)
        check_quiet(browser, path)
    check_bench(browser, result, "seq", lambda row: row["impl"], lambda row: row["forward_ms"] + row["backward_ms"], "peak_bytes")
    check_page(browser, path)


def check_bench_loss(browser, program, folder):
    path = folder / "loss.html"
    result = run(program, "bench", "loss", "--tokens", "32,64", "--hidden", 16, "--vocab", 500, "--warmup", 0, "--steps", 1, "--html",
                 path, "--json")
    browser.open(path)
    check_bench(browser, result, "tokens", lambda row: row["impl"], lambda row: row["milliseconds"], "peak_bytes")
    check_page(browser, path)


def check_bench_ring(browser, program, folder):
    path = folder / "ring.html"
    documents = folder / "lengths"
    documents.write_text("100 7 90")
    result = run(program, "bench", "ring", "--ranks", 4, "--seq", 256, "--heads", 4, "--head-dim", 16, "--mask",
                 f"causal,causal+documents:{documents}", "--impl", "ring,heads,product:2,allgather", "--warmup", 0, "--steps", 1, "--html",
                 path, "--json")
    browser.open(path)
    rows = table(browser, "Measured")
    check([row[0] for row in rows] == [row["impl"] for row in result["rows"]], "ways")
    for column, key in ((9, "sent_bytes_per_rank"), (10, "peak_bytes_per_rank"), (11, "single_bytes")):
        check([row[column] for row in rows] == [row[key] for row in result["rows"]], key, rows)
    rings = [row for row in result["rows"] if row["impl"] == "ring"]
    check(len(data_of(browser)["sections"]) == 1 + 2 * len(rings), "each ring has its schedule as a picture and as a table")
    check_page(browser, path)


def check_bench_step(browser, program, folder):
    path = folder / "step.html"
    result = run(program, "bench", "step", "--context", "64,128", "--dtype", "f32,bf16", "--budget", "64MiB", "--warmup", 0, "--steps", 1,
                 "--html", path, "--json")
    browser.open(path)
    check_bench(browser, result, "context", lambda row: f"{row['model']} {row['dtype']}", lambda row: row["milliseconds"],
                "planned_bytes")
    check([row[7] for row in table(browser, "Every case")] == [row["planned_bytes"] for row in result["rows"]], "planned")
    check_page(browser, path)


def main():
    program = chromium.find()
    if not program:
        print("skipped: no Chromium (scripts/setup.sh browser installs it)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder, chromium.Chromium(program) as browser:
        os.environ["HEADROOM_RATES"] = os.path.join(folder, "rates.json")  # those of this machine are none of our business
        browser.resize(1280, 900)
        for check_command in (check_train, check_plan, check_profile, check_bench_attention, check_bench_loss, check_bench_ring,
                              check_bench_step):
            check_command(browser, sys.argv[1], pathlib.Path(folder))
    if failures:
        sys.exit(f"{len(failures)} checks failed")
    print("pages: no complaints, numbers as in the JSON")


main()
