// Draws a report from the JSON that stands in the page. Every chart is one stop of the Tab key; a cursor moves over its
// points by mouse, finger or arrow keys, and what it points at is said in words below, with exact bytes. Text goes in as
// text nodes alone, so that no name can become markup.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const body = document.getElementById("page");

  // --- elements

  const add = (node, attributes, children) => {
    for (const [key, value] of Object.entries(attributes || {})) if (value !== undefined) node.setAttribute(key, value);
    node.append(...children.filter((child) => child !== undefined && child !== ""));
    return node;
  };
  const el = (tag, attributes, ...children) => add(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) =>
    add(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  const colored = (name) => `--color: var(--${name})`;

  // --- numbers as people read them

  const count = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 0 });
  const digits = (n, places) => n.toLocaleString("en-US", { maximumSignificantDigits: places });
  const bytes = (n) => {
    if (Math.abs(n) < 1024) return `${n} B`;
    const names = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    for (n /= 1024; Math.abs(n) >= 1024 && unit + 1 < names.length; n /= 1024) ++unit;
    return `${String(Number(n.toFixed(2)))} ${names[unit]}`;
  };
  const short = {
    plain: (n) => digits(n, 5),
    bytes,
    milliseconds: (n) => (Math.abs(n) >= 1e4 ? `${digits(n / 1e3, 4)} s` : `${digits(n, 4)} ms`),
    seconds: (n) => (n !== 0 && Math.abs(n) < 1 ? `${digits(n * 1e3, 4)} ms` : `${digits(n, 4)} s`),
    tokens: count,
  };
  const exactBytes = (n) => `${count(n)} bytes`;
  // A value in words, its exact bytes on hover and for whoever compares.
  const sized = (n, tag = "span", attributes = {}) =>
    el(tag, { ...attributes, title: exactBytes(n), "data-bytes": n }, bytes(n));
  const cellText = (cell, tag, attributes = {}) =>
    cell.bytes === undefined
      ? el(tag, attributes, cell.text)
      : el(tag, { ...attributes, title: exactBytes(cell.bytes), "data-bytes": cell.bytes }, cell.text);

  // --- scales and ticks

  const scale = (axis, low, high, from, to) => {
    const t = axis.logarithmic ? Math.log : (v) => v;
    const [a, b] = [t(low), t(high)];
    return (value) => (b === a ? (from + to) / 2 : from + ((t(value) - a) / (b - a)) * (to - from));
  };
  // Steps of 1, 2 and 5, and for bytes powers of two.
  const step = (unit, range, wanted) => {
    const rough = range / wanted;
    if (unit === "bytes") return 2 ** Math.ceil(Math.log2(Math.max(rough, 1)));
    const power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  };
  const ticks = (axis, low, high, wanted) => {
    if (!(high > low)) return [low];
    const found = [];
    if (axis.logarithmic) {
      const base = axis.unit === "bytes" || axis.unit === "tokens" ? 2 : 10;
      const log = (v) => Math.log(v) / Math.log(base);
      const first = Math.ceil(log(low) - 1e-9);
      const last = Math.floor(log(high) + 1e-9);
      const stride = Math.max(1, Math.ceil((last - first + 1) / wanted));
      for (let power = first; power <= last; power += stride) found.push(base ** power);
      if (found.length > 1) return found;
      found.length = 0;  // too narrow for powers: even steps
    }
    const by = step(axis.unit, high - low, wanted);
    for (let i = Math.ceil(low / by - 1e-9); i * by <= high * (1 + 1e-9); ++i) found.push(i * by + 0);  // never -0
    return found;
  };
  // The part of a value axis that is shown; levels belong to it unless they would flatten the rest.
  const extent = (axis, values, levels) => {
    const most = (axis.logarithmic ? 1000 : 3) * Math.max(...values);
    const near = levels.map((level) => level.value).filter((value) => value <= most && (value > 0 || !axis.logarithmic));
    const all = values.concat(near);
    let low = Math.min(...all);
    let high = Math.max(...all);
    if (axis.logarithmic) return [low / 1.3, high * 1.3];
    if (axis.unit !== "plain" || (low >= 0 && low < 0.6 * high)) low = Math.min(0, low);
    if (high === low) high = low + 1;
    const margin = (high - low) * 0.08;
    return [low === 0 ? 0 : low - margin, high + margin];
  };

  // --- one chart: frame, axes, levels, cursor
  // spec: label, x and y axes, xs (where the cursor can stand, rising), xRange, yRange, xTicks, levels, bands (rows of
  // named spans below), draw(layer, X, Y, frame), marks(X, Y, frame) -> [[x, y]] that a level's name may not hide,
  // points(i) -> [y], told(i): says in words what is there, rest, peak

  const chart = (spec) => {
    const plot = el("div", {
      class: "plot", tabindex: 0, role: "application", "aria-roledescription": "chart",
      "aria-label": `${spec.label}. Left and right move the cursor, Home and End go to the ends` +
        (spec.peak === undefined ? "." : ", P to the peak."),
    });
    let current = spec.rest;
    let frame, X, Y, cursor;

    const draw = () => {
      const width = Math.max(280, plot.clientWidth || 680);
      const bands = spec.bands || [];
      const bandHeight = 19;
      const height = (width < 560 ? 246 : 310) + bands.length * bandHeight;
      const yTicks = ticks(spec.y, ...spec.yRange, 5);
      const yNames = yTicks.map(short[spec.y.unit]);
      const left = 14 + 6.7 * Math.max(0, ...yNames.map((name) => name.length));
      frame = { left, right: width - 10, top: 26, bottom: height - 44 - bands.length * bandHeight, width, height };
      X = scale(spec.x, ...spec.xRange, frame.left, frame.right);
      Y = scale(spec.y, ...spec.yRange, frame.bottom, frame.top);
      const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
      yTicks.forEach((tick, i) => {
        root.append(svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: Y(tick), y2: Y(tick) }),
          svg("text", { x: frame.left - 8, y: Y(tick) + 4, "text-anchor": "end" }, yNames[i]));
      });
      root.append(svg("text", { x: 0, y: 12 }, spec.y.label));
      const layer = svg("g");
      root.append(layer);
      spec.draw(layer, X, Y, frame);
      root.append(svg("line", { class: "base", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }));
      bands.forEach((band, row) => drawBand(root, band, frame.bottom + 5 + row * bandHeight, bandHeight));
      const axisLine = frame.bottom + bands.length * bandHeight + 20;
      let taken = -Infinity;
      for (const tick of spec.xTicks || ticks(spec.x, ...spec.xRange, width < 560 ? 4 : 8)) {
        const name = short[spec.x.unit](tick);
        const half = 3.6 * name.length;
        const at = Math.min(Math.max(X(tick), frame.left), frame.right - half);
        if (at - half < taken) continue;
        taken = at + half + 10;
        root.append(svg("text", { x: at, y: axisLine, "text-anchor": "middle" }, name));
      }
      root.append(svg("text", { x: frame.right, y: axisLine + 17, "text-anchor": "end" }, spec.x.label));
      for (const level of spec.levels) drawLevel(root, level);
      cursor = svg("g");
      root.append(cursor);
      plot.replaceChildren(root);
      show(current);
    };

    const drawLevel = (root, level) => {
      const name = `${level.name} ${short[spec.y.unit](level.value)}`;
      const shown = level.value <= spec.yRange[1] && level.value >= spec.yRange[0];
      const y = shown ? Y(level.value) : frame.top - 14;
      if (shown) root.append(svg("line", { class: "limit-line", x1: frame.left, x2: frame.right, y1: y, y2: y }));
      const text = shown ? name : `${name} ${level.value > spec.yRange[1] ? "\u2191" : "\u2193"}`;
      const [x, baseline] = shown ? levelPlace(y, 6.4 * text.length) : [frame.right - 6.4 * text.length, 12];
      root.append(svg("text", { class: "limit", x, y: baseline }, text));
    };
    // At the right or the left, above its line or below: the first place where nothing else stands.
    const levelPlace = (y, width) => {
      const marks = spec.marks(X, Y, frame);
      const free = ([left, baseline]) => marks.every(([px, py]) =>
        px < left - 6 || px > left + width + 6 || py < baseline - 16 || py > baseline + 8);
      const places = [y - 6, y + 15].flatMap((baseline) => [[frame.right - width - 8, baseline], [frame.left + 8, baseline]]);
      return places.find(free) || places[0];
    };

    const drawBand = (root, spans, y, height) => {
      for (const span of spans) {
        const x = X(span.begin);
        const width = X(span.end) - x;
        root.append(svg("rect", { class: "stage", x, y, width: Math.max(width, 0.5), height: height - 2, rx: 2 },
          svg("title", {}, span.path)));
        const fits = [span.name, span.name.replace(/^\D* /, "")].find((name) => name.length * 6.4 + 6 < width);
        if (fits) {
          root.append(svg("text", { class: "stage-name", x: x + width / 2, y: y + height - 7, "text-anchor": "middle" }, fits));
        }
      }
    };

    const show = (i) => {
      current = i;
      const x = X(spec.xs[i]);
      cursor.replaceChildren(svg("line", { class: "cursor", x1: x, x2: x, y1: frame.top - 6, y2: frame.bottom }),
        ...spec.points(i).map((y) => svg("circle", { class: "dot", cx: x, cy: Y(y), r: 4 })));
      spec.told(i);
    };

    // The last stop that is not right of x, or the nearest: a step lasts until the next, a point is just there.
    const stopAt = (pixel) => {
      let [low, high] = [0, spec.xs.length - 1];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (X(spec.xs[middle]) <= pixel) low = middle;
        else high = middle - 1;
      }
      if (!spec.nearest || low + 1 === spec.xs.length) return low;
      return X(spec.xs[low + 1]) - pixel < pixel - X(spec.xs[low]) ? low + 1 : low;
    };
    const pointed = (event) => {
      const box = plot.getBoundingClientRect();
      show(stopAt(((event.clientX - box.left) / box.width) * frame.width));
    };
    plot.addEventListener("pointermove", pointed);
    plot.addEventListener("pointerdown", pointed);
    plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && show(spec.rest));
    plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const far = event.shiftKey ? Math.max(1, Math.round(spec.xs.length / 10)) : 1;
      const targets = { ArrowLeft: current - far, ArrowRight: current + far, Home: 0, End: spec.xs.length - 1,
                        p: spec.peak, P: spec.peak, Escape: spec.rest };
      const target = targets[event.key];
      if (target === undefined) return;
      event.preventDefault();
      show(Math.min(Math.max(target, 0), spec.xs.length - 1));
    });
    new ResizeObserver(() => frame && plot.clientWidth !== frame.width && draw()).observe(plot);
    return { plot, draw };
  };

  const keys = (withPeak) => {
    const key = (name) => el("kbd", {}, name);
    return el("p", { class: "keys" }, key("\u2190"), " ", key("\u2192"), " move the cursor, with ", key("Shift"), " further; ",
      key("Home"), " ", key("End"), ...(withPeak ? ["; ", key("P"), " the peak"] : []));
  };

  // --- tables

  const scrolled = (label, table) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
  // The same values as a chart, for whoever would rather read; built when it is opened.
  const valuesTable = (label, header, rows) => {
    const details = el("details", {}, el("summary", {}, "The values as a table"));
    details.addEventListener("toggle", () => {
      if (details.children.length > 1) return;
      details.append(scrolled(label, el("table", {},
        el("thead", {}, el("tr", {}, ...header.map((name, i) => el("th", { scope: "col", class: i ? "number" : undefined }, name)))),
        el("tbody", {}, ...rows().map((row) => el("tr", {}, ...row.map((cell, i) =>
          cell instanceof Node ? cell : el("td", { class: i ? "number" : undefined }, cell))))))));
    });
    return details;
  };
  const numeric = (text) => /^[-+\u2212]?[\d.,]*\d|^-?$/.test(text);

  const kinds = {};

  kinds.figures = (section) => el("section", { class: "figure-card" }, el("dl",
    // One row, or two of nearly the same length.
    { class: "card figures", style: `--columns: ${Math.ceil(section.figures.length / (section.figures.length > 5 ? 2 : 1))}` },
    ...section.figures.map((figure) => el("div", {}, el("dt", {}, figure.label),
      cellText(figure.value, "dd", { class: "value" }), figure.note ? el("dd", { class: "note" }, figure.note) : undefined))));

  kinds.table = (section) => {
    const [header, ...rows] = section.rows;
    const right = header.map((_, i) => i > 0 && rows.every((row) => !row[i] || numeric(row[i].text)));
    const side = (i) => (right[i] ? "number" : undefined);
    return el("section", { class: "card" }, el("h2", {}, section.title), scrolled(section.title, el("table", { class: "whole" },
      el("thead", {}, el("tr", {}, ...header.map((cell, i) => el("th", { scope: "col", class: side(i) }, cell.text)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, i) => cellText(cell, "td", { class: side(i) }))))))),
      section.note ? el("p", { class: "note" }, section.note) : undefined);
  };

  // --- the memory of a phase

  kinds.timeline = (section) => {
    const moments = section.number.length;
    const text = (id) => section.texts[id];
    const totals = section.number.map((_, i) => section.live.reduce((sum, column) => sum + column[i], 0));
    const peak = section.peak;

    const readout = el("div", { class: "readout", "aria-live": "polite" });
    const values = section.categories.map(() => el("span", { class: "value" }));
    const legend = el("ul", { class: "legend" }, ...section.categories.map((name, c) =>
      el("li", {}, el("span", { class: "swatch", style: colored(name) }), el("span", { class: "name" }, name), values[c])));
    const told = (i) => {
      const change = section.change[i];
      const what = section.number[i] === 0
        ? [el("strong", {}, "before the phase"), " what the run holds"]
        : [el("strong", {}, text(section.name[i])), ` ${change < 0 ? "freed" : "allocated"}, `, sized(Math.abs(change)),
           text(section.stage[i]) ? el("span", { class: "quiet" }, ` in ${text(section.stage[i])}`) : ""];
      readout.replaceChildren(el("p", {}, ...what), el("p", {},
        el("strong", { "data-bytes": totals[i] }, bytes(totals[i])), " live",
        el("span", { class: "quiet" }, ` \u00b7 ${exactBytes(totals[i])}${i === peak ? ", the peak" : ""} \u00b7 ` +
          `moment ${count(section.number[i])} of ${count(section.moment_count - 1)}`)));
      section.live.forEach((column, c) => {
        values[c].textContent = bytes(column[i]);
        values[c].title = exactBytes(column[i]);
        values[c].dataset.bytes = column[i];
        values[c].parentNode.classList.toggle("zero", column[i] === 0);
      });
    };

    const stages = section.stages.map(([id, depth, begin, end]) =>
      ({ path: text(id), name: text(id).split("/").pop(), depth, begin, end }));
    const bands = [1, 2].map((depth) => stages.filter((stage) => stage.depth === depth)).filter((band) => band.length);
    const draw = (layer, X, Y, frame) => {
      const fixed = (n) => n.toFixed(1);
      // Where several moments share a pixel and a half, the highest stands for them: a spike stays visible.
      const steps = [];
      section.number.forEach((number, i) => {
        const column = Math.floor(X(number) / 1.5);
        const last = steps[steps.length - 1];
        if (!last || last.column !== column) steps.push({ column, i, x: fixed(X(number)) });
        else if (totals[i] > totals[last.i]) last.i = i;
      });
      const x = steps.map((one) => one.x).concat(fixed(X(section.moment_count)));
      let below = steps.map(() => 0);
      section.categories.forEach((name, c) => {
        const above = below.map((base, k) => base + section.live[c][steps[k].i]);
        let path = `M${x[0]},${fixed(Y(above[0]))}`;
        for (let k = 0; k < steps.length; ++k) path += `V${fixed(Y(above[k]))}H${x[k + 1]}`;
        for (let k = steps.length - 1; k >= 0; --k) path += `V${fixed(Y(below[k]))}H${x[k]}`;
        layer.append(svg("path", { class: steps.length < 300 ? "area" : "", style: `fill: var(--${name})`, d: path + "Z" }));
        below = above;
      });
      // The peak itself is three pixels wide, however short it was.
      let floor = 0;
      for (const [c, name] of X(1) - X(0) < 3 ? section.categories.entries() : []) {
        const roof = floor + section.live[c][peak];
        layer.append(svg("rect", { style: `fill: var(--${name})`, x: X(section.number[peak]), y: Y(roof), width: 3,
                                   height: Y(floor) - Y(roof) }));
        floor = roof;
      }
      for (const stage of bands[0] || []) {
        layer.append(svg("line", { class: "boundary", x1: X(stage.begin), x2: X(stage.begin), y1: frame.top, y2: frame.bottom }));
      }
      const label = peakLabel(X, Y, frame);
      layer.append(svg("text", { class: "strong", x: label.x, y: label.y, "text-anchor": label.side }, label.text));
    };
    const peakLabel = (X, Y, frame) => {
      const at = X(section.number[peak]);
      const side = at > (frame.left + frame.right) / 2 ? "end" : "start";
      return { text: `peak ${bytes(totals[peak])}`, x: at + (side === "end" ? -7 : 7), y: Y(totals[peak]) - 8, side };
    };
    const marks = (X, Y, frame) => {
      const { text, x, y, side } = peakLabel(X, Y, frame);
      return [...text].map((_, i) => [x + (side === "end" ? -7 : 7) * i, y - 4]);
    };
    const y = { label: "live", unit: "bytes", logarithmic: false };
    const made = chart({
      label: section.title, x: { label: "allocations and frees, in order", unit: "tokens", logarithmic: false }, y,
      xs: section.number, xRange: [0, section.moment_count], yRange: extent(y, totals, section.levels),
      levels: section.levels, bands, draw, marks, points: (i) => [totals[i]], told, rest: peak, peak,
    });

    const thinned = moments < section.moment_count
      ? el("p", { class: "note" }, `Drawn from ${count(moments)} of ${count(section.moment_count)} moments: of each short ` +
          "span the highest and the lowest, so that no peak is lost.")
      : undefined;
    const table = valuesTable(section.title, ["moment", "what", "stage", "live", ...section.categories], () =>
      section.number.map((number, i) => [count(number),
        number === 0 ? "before the phase" : `${section.change[i] < 0 ? "free" : "allocate"} ${text(section.name[i])}`,
        text(section.stage[i]), sized(totals[i], "td", { class: "number" }),
        ...section.live.map((column) => sized(column[i], "td", { class: "number" }))]));
    return [el("section", { class: "card chart" }, el("h2", {}, section.title), made.plot, readout, legend, keys(true),
      thinned, table), blocksAtPeak(section, totals[peak]), made.draw];
  };

  // Blocks of one name and category as one row; those of several layers say which.
  const grouped = (blocks) => {
    const groups = new Map();
    for (const block of blocks) {
      const key = `${block.name}\n${block.category}`;
      if (!groups.has(key)) groups.set(key, { ...block, size: 0, places: [] });
      const group = groups.get(key);
      group.size += block.size;
      group.places.push(block.place);
    }
    const place = (places) => {
      const kinds = [...new Set(places.map((path) => path.replace(/ \d+/, " \0")))];
      const numbers = places.map((path) => Number((path.match(/ (\d+)/) || [0, 0])[1]));
      const layers = [Math.min(...numbers), Math.max(...numbers)];
      const first = kinds[0].replace("\0", layers[0] === layers[1] ? layers[0] : layers.join("\u2013"));
      return kinds.length === 1 ? first : `${first} and ${kinds.length - 1} more`;
    };
    return [...groups.values()].sort((a, b) => b.size - a.size).map((group) =>
      ({ ...group, place: place(group.places), times: group.places.length }));
  };

  const blocksAtPeak = (section, total) => {
    const blocks = section.blocks.map(([name, category, place, size]) =>
      ({ name: section.texts[name], category: section.texts[category], place: section.texts[place], size, times: 1 }));
    const rows = (list, others, otherBytes, kind) => {
      const largest = Math.max(1, ...list.map((block) => block.size));
      const made = list.map((block) => el("tr", {},
        el("td", {}, block.name, block.times > 1 ? el("span", { class: "quiet" }, `\u00a0\u00d7\u00a0${count(block.times)}`) : ""),
        el("td", { class: "category" }, el("span", { class: "swatch", style: colored(block.category) }), block.category),
        el("td", { class: "path place" }, block.place),
        el("td", { class: "bar" }, el("i", { style: `${colored(block.category)}; width: ${((100 * block.size) / largest).toFixed(2)}%` })),
        sized(block.size, "td", { class: "number" })));
      if (others > 0) {
        made.push(el("tr", { class: "others" }, el("td", { class: "quiet" }, `${count(others)} smaller`),
          el("td"), el("td", { class: "place" }), el("td", { class: "bar" }), sized(otherBytes, "td", { class: "number" })));
      }
      return el("tbody", { class: kind }, ...made);
    };
    const most = 12;
    const groups = grouped(blocks);
    const rest = groups.splice(most);
    const folded = groups.length < blocks.length;
    const sum = (list, key) => list.reduce((before, block) => before + block[key], 0);
    const table = el("table", { class: folded ? "blocks folded" : "blocks" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "allocation"), el("th", { scope: "col" }, "category"),
        el("th", { scope: "col", class: "place" }, "allocated in"), el("td", { class: "bar" }),
        el("th", { scope: "col", class: "number" }, "size"))),
      rows(blocks, section.other_blocks, section.other_bytes, "each"),
      folded ? rows(groups, sum(rest, "times") + section.other_blocks, sum(rest, "size") + section.other_bytes, "groups") : undefined);
    const all = `${count(section.blocks.length + section.other_blocks)} allocations`;
    const parts = [el("h2", {}, `Alive at the peak of ${section.title.replace(/^Memory of /, "")}`),
      el("p", { class: "note above" }, `${all}, `, sized(total), folded ? ", by name" : "", ", largest first"),
      scrolled("Allocations alive at the peak", table)];
    if (folded) {
      const button = el("button", { type: "button", "aria-expanded": "false" }, `Show all ${all}`);
      button.addEventListener("click", () => {
        const hidden = table.classList.toggle("folded");
        button.setAttribute("aria-expanded", String(!hidden));
        button.textContent = hidden ? `Show all ${all}` : "Show them by name";
      });
      parts.push(button);
    }
    return el("section", { class: "card" }, ...parts);
  };

  // --- lines

  const dashes = ["", "7 4", "2 4", "10 4 2 4"];
  const shapes = [
    (x, y, r) => `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
    (x, y, r) => `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
    (x, y, r) => `M${x},${y - 1.3 * r}l${1.3 * r},${2.2 * r}h${-2.6 * r}Z`,
    (x, y, r) => `M${x},${y - 1.4 * r}l${1.4 * r},${1.4 * r}l${-1.4 * r},${1.4 * r}l${-1.4 * r},${-1.4 * r}Z`,
  ];

  kinds.lines = (section) => {
    const y = section.y;
    const x = section.x;
    const positive = ([px, py]) => py !== null && (!y.logarithmic || py > 0) && (!x.logarithmic || px > 0);
    const series = section.series.map((one, i) => ({
      name: one.name, points: one.points.filter(positive), at: new Map(one.points.filter(positive)),
      color: `var(--series-${i % 8})`, dash: dashes[(i >> 1) % dashes.length], shape: shapes[i % shapes.length],
    }));
    const xs = [...new Set(series.flatMap((one) => one.points.map(([px]) => px)))].sort((a, b) => a - b);
    if (xs.length === 0) {
      return el("section", { class: "card" }, el("h2", {}, section.title), el("p", { class: "note" }, "Nothing was measured."));
    }
    const readout = el("div", { class: "readout", "aria-live": "polite", style: "min-height: 0" });
    const values = series.map(() => el("span", { class: "value" }));
    const wide = series.some((one) => one.name.length > 14);
    const sample = (one) => svg("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" },
      svg("line", { class: "series", style: `stroke: ${one.color}`, "stroke-dasharray": one.dash, x1: 1, x2: 25, y1: 6, y2: 6 }),
      svg("path", { class: "mark", style: `fill: ${one.color}`, d: one.shape(13, 6, 3.5) }));
    const legend = el("ul", { class: wide ? "legend wide" : "legend" }, ...series.map((one, i) =>
      el("li", {}, sample(one), el("span", { class: "name", title: one.name }, one.name), values[i])));
    const words = (unit, value) => (value === undefined ? "\u2013" : short[unit](value));
    const told = (i) => {
      readout.replaceChildren(el("p", {}, el("strong", {}, `${x.label} ${words(x.unit, xs[i])}`),
        el("span", { class: "quiet" }, ": " + series.filter((one) => one.at.has(xs[i])).map((one) => {
          const value = one.at.get(xs[i]);
          return `${one.name} ${words(y.unit, value)}${y.unit === "bytes" ? ` (${exactBytes(value)})` : ""}`;
        }).join(", "))));
      series.forEach((one, s) => {
        const value = one.at.get(xs[i]);
        values[s].textContent = words(y.unit, value);
        values[s].dataset.value = value === undefined ? "" : value;
        values[s].title = value !== undefined && y.unit === "bytes" ? exactBytes(value) : "";
      });
    };
    const draw = (layer, X, Y) => {
      for (const one of series) {
        const at = one.points.map(([px, py]) => [X(px), Y(py)]);
        const path = at.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)},${py.toFixed(1)}`).join("");
        layer.append(svg("path", { class: "series", style: `stroke: ${one.color}` + (at.length > 400 ? "; stroke-width: 1.2" : ""),
                                   "stroke-dasharray": one.dash, d: path }));
        if (at.length > 40) continue;
        for (const [px, py] of at) layer.append(svg("path", { class: "mark", style: `fill: ${one.color}`, d: one.shape(px, py, 4) }));
      }
    };
    // Along the lines, close enough together that a label between two would be seen to touch them.
    const marks = (X, Y) => series.flatMap((one) => one.points.flatMap(([px, py], i) => {
      const [ox, oy] = one.points[Math.max(i - 1, 0)];
      return Array.from({ length: 24 }, (_, k) => [X(ox) + ((X(px) - X(ox)) * k) / 23, Y(oy) + ((Y(py) - Y(oy)) * k) / 23]);
    }));
    const heights = series.flatMap((one) => one.points.map(([, py]) => py));
    const made = chart({
      label: section.title, x, y, xs, xRange: [xs[0], xs[xs.length - 1]], xTicks: xs.length <= 9 ? xs : undefined,
      yRange: extent(y, heights, section.levels), levels: section.levels, draw, marks, nearest: true,
      points: (i) => series.filter((one) => one.at.has(xs[i])).map((one) => one.at.get(xs[i])), told, rest: xs.length - 1,
    });
    const table = valuesTable(section.title, [x.label, ...series.map((one) => one.name)], () => xs.map((at) =>
      [words(x.unit, at), ...series.map((one) => {
        const value = one.at.get(at);
        return value !== undefined && y.unit === "bytes" ? sized(value, "td", { class: "number" }) : words(y.unit, value);
      })]));
    return [el("section", { class: "card chart" }, el("h2", {}, section.title), made.plot, readout, legend, keys(false),
      section.note ? el("p", { class: "note" }, section.note) : undefined, table), made.draw];
  };

  // Boxes in lanes over one axis, and arrows between lanes; what each is stands in its title.
  kinds.lanes = (section) => {
    const [left, width, height] = [70, 930, 30];
    const end = Math.max(...section.boxes.map((box) => box.end), 1e-9);
    const X = (value) => left + (value / end) * width;
    const Y = (lane) => 8 + lane * height;
    const tall = Y(section.lanes.length) + 8;
    const drawing = svg("svg", { class: "lanes", viewBox: `0 0 1000 ${tall}`, role: "img", "aria-label": section.title },
      svg("defs", {}, svg("marker", { id: "head", viewBox: "0 0 6 6", refX: 5, refY: 3, markerWidth: 5, markerHeight: 5, orient: "auto" },
        svg("path", { d: "M0,0L6,3L0,6z" }))),
      ...section.lanes.flatMap((lane, i) => [
        svg("text", { x: left - 8, y: Y(i) + height / 2 + 2, "text-anchor": "end" }, lane),
        svg("line", { class: "lane", x1: left, x2: left + width, y1: Y(i) + height - 3, y2: Y(i) + height - 3 })]),
      ...section.boxes.map((box) => svg("rect", { style: `fill: var(--series-${box.color % 8})`, x: X(box.begin), y: Y(box.lane),
        width: Math.max(X(box.end) - X(box.begin) - 1, 0.6), height: height - 6 }, svg("title", {}, box.title))),
      ...section.arrows.map((arrow) => svg("line", { class: "arrow", "marker-end": "url(#head)", x1: X(arrow.begin), x2: X(arrow.end),
        y1: Y(arrow.from) + height / 2 - 3, y2: Y(arrow.to) + height / 2 - 3 }, svg("title", {}, arrow.title))));
    return el("section", { class: "card chart" }, el("h2", {}, section.title), drawing,
      section.note ? el("p", { class: "note" }, section.note) : undefined);
  };

  // --- the page

  body.append(el("header", {}, el("h1", {}, page.title), page.subtitle ? el("p", { class: "subtitle" }, page.subtitle) : "",
    ...page.notes.map((note) => el("p", { class: "notice" }, note))));
  for (const section of page.sections) {
    const parts = [kinds[section.kind](section)].flat();
    body.append(...parts.filter((part) => part instanceof Node));
    for (const draw of parts) if (typeof draw === "function") draw();  // once it is in the page and has a width
  }
})();
