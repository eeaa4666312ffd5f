"""What holds for every page, whatever the command: keys and mouse name allocations, charts show their data, nothing is
fetched, nothing complains, it fits narrow windows and dark rooms."""

import json
import subprocess
import sys

failures = []


def check(holds, *what):
    if not holds:
        failures.append(" ".join(str(part) for part in what))
        print("FAILED:", failures[-1])


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{arguments}: {done.stderr}")
    return json.loads(done.stdout)


def data_of(browser):
    return json.loads(browser.ask("document.getElementById('data').textContent"))


def check_quiet(browser, path):
    check(path.stat().st_size < 2_000_000, path.name, "has", path.stat().st_size, "bytes")
    check(browser.complaints == [], "complaints:", browser.complaints)
    fetched = [url for url in browser.requests if not url.startswith(("file:", "data:"))]
    check(fetched == [], "fetched:", fetched)
    check(browser.ask("typeof hacked") == "undefined", "a name became code")
    shown = browser.ask("document.querySelectorAll('section').length")
    check(shown >= len(data_of(browser)["sections"]), "only", shown, "sections are shown")


def check_looks(browser):
    for width, height in ((1280, 900), (390, 844), (360, 640)):
        browser.resize(width, height)
        # Charts are drawn anew when the width has changed: two frames later they have been.
        wide = browser.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>"
                           " done(document.documentElement.scrollWidth))))")
        check(wide <= width, "at", width, "pixels the page is", wide, "wide")
        drawn = browser.ask("[...document.querySelectorAll('.plot svg')].every((s) => Math.abs(s.viewBox.baseVal.width -"
                            " s.parentNode.clientWidth) < 2)")
        check(drawn, "a chart was not drawn anew at", width)
    browser.resize(1280, 900)
    grounds = set()
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        grounds.add(browser.ask("getComputedStyle(document.body).backgroundColor"))
    check(len(grounds) == 2, "dark looks like light:", grounds)


class Chart:
    """The n-th chart of the page with its card: plot, readout, legend."""

    def __init__(self, browser, index):
        self.browser = browser
        self.card = f"document.querySelectorAll('.chart')[{index}]"

    def ask(self, expression):
        return self.browser.ask(f"(() => {{ const card = {self.card}; return {expression}; }})()")

    def focus_with_tab(self):
        for _ in range(40):
            self.browser.press("Tab")
            if self.ask("document.activeElement === card.querySelector('.plot')"):
                outline = self.ask("getComputedStyle(document.activeElement).outlineStyle")
                return check(outline != "none", "focus cannot be seen")
        check(False, "Tab does not reach the chart")

    def press(self, key):
        self.browser.press(key)
        return self.readout()

    def point(self, fraction):
        box = self.ask("(card.querySelector('.plot').scrollIntoView({block: 'center'}),"
                       " card.querySelector('.plot').getBoundingClientRect().toJSON())")
        self.browser.move(box["x"] + fraction * box["width"], box["y"] + box["height"] / 3)
        return self.readout()

    def readout(self):
        return self.ask("card.querySelector('.readout').textContent")

    def total(self):
        return self.ask("Number(card.querySelector('.readout strong[data-bytes]').dataset.bytes)")

    def legend(self, attribute):
        return self.ask(f"[...card.querySelectorAll('.legend .value')].map((value) => Number(value.dataset.{attribute}))")


def check_timeline(browser, index, order, section):
    chart = Chart(browser, index)
    texts, names = section["texts"], section["name"]
    totals = [sum(column) for column in zip(*section["live"])]
    peak = section["peak"]
    check(totals[peak] == max(totals), "the peak is not the highest")
    check(chart.total() == totals[peak], "the chart does not rest at its peak")

    chart.focus_with_tab()
    check("before the phase" in chart.press("Home"), "Home:", chart.readout())
    check(chart.total() == totals[0], "Home has", chart.total(), "bytes, the data", totals[0])
    for i in (1, 2):
        told = chart.press("ArrowRight")
        check(texts[names[i]] in told and texts[section["stage"][i]] in told, "ArrowRight", i, told)
        check(chart.total() == totals[i], "moment", i, "has", chart.total(), "bytes, the data", totals[i])
        check(chart.legend("bytes") == [column[i] for column in section["live"]], "the legend of moment", i)
    told = chart.press("End")
    check(texts[names[-1]] in told and "freed" in told, "End:", told)
    told = chart.press("p")
    check("the peak" in told and f"{totals[peak]:,} bytes" in told, "P:", told)

    told = {chart.point(fraction) for fraction in (0.3, 0.5, 0.7, 0.9)}
    check(len(told) > 1, "the mouse changes nothing")
    for text in told:
        check(any(texts[name] and texts[name] in text for name in names), "the mouse names no allocation:", text)
    browser.move(1, 1)
    check(chart.total() == totals[peak], "the chart does not return to its peak")

    table = f"document.querySelectorAll('table.blocks')[{order}]"
    for kind in browser.ask(f"[...{table}.tBodies].map((rows) => rows.className)"):
        blocks = browser.ask(f"[...{table}.querySelectorAll('tbody.{kind} td.number')].map((cell) => Number(cell.dataset.bytes))")
        check(sum(blocks) == totals[peak], "blocks at the peak,", kind, "add up to", sum(blocks), "not", totals[peak])
        listed = browser.ask(f"{table}.querySelectorAll('tbody.{kind} tr:not(.others)').length")
        check(blocks[:listed] == sorted(blocks[:listed], reverse=True), "blocks at the peak,", kind, "are not sorted")


def check_lines(browser, index, section):
    chart = Chart(browser, index)
    chart.focus_with_tab()
    for key, at in (("Home", min), ("End", max)):
        x = at(point[0] for series in section["series"] for point in series["points"])
        chart.press(key)
        seen = chart.legend("value")
        for series, value in zip(section["series"], seen):
            expected = dict(map(tuple, series["points"])).get(x)
            check(expected is None or value == expected, series["name"], "at", x, "shows", value, "not", expected)
    chart.ask("card.querySelector('details').open = true")
    rows = browser.ask("new Promise((done) => setTimeout(() => done("
                       f"{chart.card}.querySelectorAll('details tbody tr').length), 50))")
    check(rows == len({point[0] for series in section["series"] for point in series["points"]}), "the table has", rows, "rows")


def check_charts(browser):
    index = timelines = 0
    for section in data_of(browser)["sections"]:
        if section["kind"] == "timeline":
            check_timeline(browser, index, timelines, section)
            timelines += 1
        if section["kind"] == "lines":
            check_lines(browser, index, section)
        index += section["kind"] in ("timeline", "lines")


def figure(browser, label):
    found = "[...document.querySelectorAll('.figures > div')].find((f) => f.querySelector('dt').textContent === %s)" % json.dumps(label)
    return browser.ask(f"(() => {{ const value = {found}.querySelector('.value');"
                       " return value.dataset.bytes ? Number(value.dataset.bytes) : value.textContent; })()")


def table(browser, title):
    """The rows of the table of that title; sizes as exact bytes."""
    card = "[...document.querySelectorAll('section')].find((s) => s.querySelector('h2')?.textContent === %s)" % json.dumps(title)
    return browser.ask(f"[...{card}.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) =>"
                       " cell.dataset.bytes ? Number(cell.dataset.bytes) : cell.textContent))")


def section(browser, kind, title=""):
    """The first section of that kind whose title begins so, as the page's data has it."""
    return next(s for s in data_of(browser)["sections"] if s["kind"] == kind and s.get("title", "").startswith(title))


def check_page(browser, path):
    check_charts(browser)
    check_looks(browser)
    check_quiet(browser, path)
