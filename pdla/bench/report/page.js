"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const PARTS = ["computing", "communicating", "waiting"];
const state = { words: "", column: null, down: false, run: null, view: null, longest: 0, product: null };

// ------------------------------------------------------------------ numbers and elements

function si(x, unit) {
  if (x === null || x === undefined) return "–";
  if (x === 0) return `0 ${unit}`;
  const power = Math.max(-3, Math.min(5, Math.floor(Math.log10(Math.abs(x) * 1.0005) / 3)));
  return `${Number((x / 1000 ** power).toPrecision(3))} ${["n", "µ", "m", "", "k", "M", "G", "T", "P"][power + 3]}${unit}`;
}
const seconds = x => si(x, "s"), bytes = x => si(x, "B"), rate = x => si(x, "FLOP/s");
const percent = x => x === null ? "–" : `${(100 * x).toFixed(1)} %`;
const plain = x => x === null ? "–" : typeof x === "number" ? String(Number(x.toPrecision(3))) : x;
const whole = x => x.toLocaleString("en");

const $ = id => document.getElementById(id);
const chart = id => document.querySelector(`#${id} .chart`);

function html(name, text, attributes = {}) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...[text].flat());
  return made;
}

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function canvas(id, height, label) {
  const at = chart(id), width = Math.max(320, at.clientWidth - 2);
  const made = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  at.replaceChildren(made);
  return [made, width];
}

function nothing(id, why) {
  chart(id).replaceChildren(html("p", why, { className: "empty" }));
}

// ------------------------------------------------------------------ tooltips

const tips = new WeakMap();

function tipped(element, title, facts) {
  tips.set(element, () => [html("b", title), ...facts.map(([name, value]) => html("div", [html("span", name), html("span", value)]))]);
  return element;
}

document.addEventListener("pointermove", event => {
  const content = tips.get(event.target), tip = $("tip");
  tip.hidden = !content;
  if (!content) return;
  tip.replaceChildren(...content());
  const room = document.documentElement;
  tip.style.left = `${Math.min(event.clientX + 14, room.clientWidth - tip.offsetWidth - 4)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, room.clientHeight - tip.offsetHeight - 4)}px`;
});

// ------------------------------------------------------------------ which rows, in which order

const part = name => line => line.split && line.split[name] / line.split.seconds;
const foretold = line => line.predicted && line.predicted.seconds;
const speed = line => line.seconds && line.flops / line.seconds;
const COLUMNS = [
  ["file", line => DATA.files.length > 1 ? line.file : null, plain],
  ["ranks", line => line.ranks, plain],
  ["product", line => line.product, plain],
  ["algorithm", line => line.algorithm, plain],
  ["grid", line => line.grid, plain],
  ["median time", line => line.seconds, seconds],
  ["predicted", foretold, seconds],
  ["predicted / median", line => line.seconds && line.predicted && foretold(line) / line.seconds, plain],
  ["rate", speed, rate],
  ["of peak", line => line.share_of_peak, percent],
  ...PARTS.map(name => [name, part(name), percent]),
  ["received", line => line.received, bytes],
  ["x bound", line => line.multiple, plain],
  ["messages", line => line.messages, whole],
  ["workspace", line => line.workspace, bytes],
  ["checked", line => line.checks, plain],
].filter(([, value]) => DATA.lines.some(line => value(line) !== null && value(line) !== ""));

function order(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  const before = typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return state.down ? -before : before;
}

function shown() {
  const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
  const text = line => COLUMNS.map(([, value, show]) => show(value(line))).join(" ").toLowerCase();
  const found = DATA.lines.filter(line => words.every(word => text(line).includes(word)));
  return state.column ? found.sort((a, b) => order(state.column[1](a), state.column[1](b))) : found;
}

// ------------------------------------------------------------------ the table

function headings() {
  document.querySelector("thead tr").replaceChildren(...COLUMNS.map(column => {
    const sorted = state.column !== column ? "none" : state.down ? "descending" : "ascending";
    const button = html("button", column[0], { type: "button", onclick: () => sort(column) });
    const made = html("th", button, { scope: "col", className: kind(column) });
    made.setAttribute("aria-sort", sorted);
    return made;
  }));
}

const kind = ([, value]) => DATA.lines.some(line => typeof value(line) === "number") ? "number" : "words";

function sort(column) {
  state.down = state.column === column && !state.down;
  state.column = column;
  draw();
  [...document.querySelectorAll("th button")][COLUMNS.indexOf(column)].focus();
}

function table(lines) {
  headings();
  document.querySelector("tbody").replaceChildren(...lines.map(line => html("tr", COLUMNS.map(column =>
    html("td", column[2](column[1](line)), { className: kind(column) })), { className: line.right ? "" : "wrong" })));
}

// ------------------------------------------------------------------ bars

const NAMES = 190, END = 110, STEP = 20;

function bars(id, label, rows) {
  const groups = rows.filter((row, i) => i === 0 || rows[i - 1].line.product !== row.line.product).length;
  const [at, width] = canvas(id, STEP * (rows.length + 1.4 * groups) + 4, label);
  let y = 0;
  rows.forEach((row, i) => {
    if (i === 0 || rows[i - 1].line.product !== row.line.product) {
      at.append(svg("text", { x: 0, y: y + 19, class: "head" }, row.line.product));
      y += 1.4 * STEP;
    }
    const scale = (width - NAMES - END) / row.longest;
    at.append(svg("text", { x: NAMES - 8, y: y + 14, "text-anchor": "end", class: row.faint ? "pale" : "" }, row.name));
    let x = NAMES;
    for (const [length, fill] of row.pieces) {
      const look = { x, y: y + 3, width: Math.max(0, length * scale), height: STEP - 6, style: `fill: var(--${fill})` };
      at.append(row.on(svg("rect", { ...look, class: row.faint ? "bar predicted" : "bar" })));
      x += Math.max(0, length * scale);
    }
    at.append(svg("text", { x: x + 6, y: y + 14, class: "pale" }, row.end));
    row.after?.(at, y, scale);
    y += STEP;
  });
}

const longestOf = (lines, length) => Object.fromEntries(lines.map(line => [line.product, Math.max(1e-300, ...lines
  .filter(other => other.product === line.product).map(length))]));

function split(lines) {
  const total = line => Math.max(line.split ? line.split.seconds : 0, line.predicted ? line.predicted.seconds : 0);
  const longest = longestOf(lines, total);
  const rows = lines.flatMap(line => [[line.split, false], [line.predicted, true]].filter(([told]) => told).map(([told, faint]) => ({
    line, faint, longest: longest[line.product], end: seconds(told.seconds),
    name: faint ? (line.split ? "predicted" : `${line.label}, predicted`) : line.label,
    pieces: PARTS.map(name => [told[name], name]),
    on: rect => {
      rect.addEventListener("click", () => choose(line));
      return tipped(rect, `${line.label}${faint ? ", predicted" : ""}: ${line.product}`, [
        ["in all", seconds(told.seconds)], ...PARTS.map(name => [name, `${seconds(told[name])}, ${percent(told[name] / told.seconds)}`]),
        ["busiest rank computes", seconds(told.busiest)]]);
    },
  })));
  if (rows.length) bars("split", "Stacked bars: computing, communicating, waiting", rows);
  else nothing("split", "No row here was run, or foretold on a machine (gemm --machine).");
}

function volume(lines) {
  const some = lines.filter(line => line.multiple !== null);
  const longest = longestOf(some, line => Math.max(1, line.multiple));
  const rows = some.map(line => ({
    line, longest: longest[line.product], name: line.label, pieces: [[line.multiple, "communicating"]], end: `${plain(line.multiple)} x, ${bytes(line.received)}`,
    after: (at, y, scale) => at.append(svg("line", { x1: NAMES + scale, x2: NAMES + scale, y1: y, y2: y + STEP, class: "bound" })),
    on: rect => tipped(rect, `${line.label}: ${line.product}`, [
      ["received", bytes(line.received)], ["lower bound", bytes(line.bound)], ["over the bound", `${plain(line.multiple)} x`],
      ["by formula", bytes(line.formula)], ["messages", whole(line.messages)]]),
  }));
  if (rows.length) bars("volume", "Bars: bytes received over the lower bound", rows);
  else nothing("volume", "No row here has to receive anything.");
}

// ------------------------------------------------------------------ points

function ticks(lo, hi) {
  const decades = Math.log10(hi / lo), found = [];
  for (let power = Math.floor(Math.log10(lo)); power <= Math.log10(hi); power++)
    for (const step of decades > 2.5 ? [1] : decades > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7])
      if (step * 10 ** power >= lo && step * 10 ** power <= hi) found.push(step * 10 ** power);
  return found;
}

function axes(id, label, points, names, formats, right, marks) {
  const height = 340, left = 96, top = 10, bottom = 46;
  const [at, width] = canvas(id, height, label);
  const range = k => [Math.min(...points.map(p => p[k])) / 1.4, Math.max(...points.map(p => p[k])) * 1.4];
  const [[x0, x1], [y0, y1]] = [range(0), range(1)];
  const X = x => left + (width - left - right) * Math.log(x / x0) / Math.log(x1 / x0);
  const Y = y => height - bottom - (height - top - bottom) * Math.log(y / y0) / Math.log(y1 / y0);
  for (const x of marks ?? ticks(x0, x1)) {
    at.append(svg("path", { d: `M${X(x)},${top}V${height - bottom}`, class: "grid" }));
    at.append(svg("text", { x: X(x), y: height - bottom + 16, "text-anchor": "middle", class: "pale" }, formats[0](x)));
  }
  for (const y of ticks(y0, y1)) {
    at.append(svg("path", { d: `M${left},${Y(y)}H${width - right}`, class: "grid" }));
    at.append(svg("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end", class: "pale" }, formats[1](y)));
  }
  at.append(svg("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, names[0]));
  at.append(svg("text", { x: 0, y: 0, transform: `translate(14 ${(height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, names[1]));
  return { at, X, Y, x0, x1, path: corners => `M${corners.map(([x, y]) => `${X(x)},${Y(y)}`).join("L")}` };
}

function dot(plot, x, y, colour, hollow) {
  const made = svg("circle", { cx: plot.X(x), cy: plot.Y(y), r: 5, "stroke-width": 2, class: "point",
    style: `stroke: ${colour}; fill: ${hollow ? "var(--card)" : colour}` });
  plot.at.append(made);
  return made;
}

function legend(id, names) {
  const colours = Object.fromEntries(names.map((name, i) => [name, `var(--c${i % 10})`]));
  document.querySelector(`#${id} .legend`).replaceChildren(...names.map(name => {
    const made = html("li", name);
    made.style.setProperty("--of", colours[name]);
    return made;
  }));
  return colours;
}

const unique = list => [...new Set(list)];
const timed = line => [[line.seconds, false], [foretold(line), true]].filter(([time]) => time);

function roofline(lines) {
  const some = lines.filter(line => line.intensity !== null && timed(line).length);
  const colours = legend("roofline", unique(some.map(line => line.algorithm)));
  if (!some.length) return nothing("roofline", "No row here has a time and receives bytes.");
  const points = some.flatMap(line => timed(line).map(([time, hollow]) => [line.intensity, line.flops / time, line, hollow]));
  const peaks = some.filter(line => line.peak).map(line => [line.intensity, line.peak]);
  const least = Math.min(...points.map(point => point[1])) / 1.4, roofs = {};
  for (const line of some) if (line.peak) roofs[`${line.dtype}, ${line.ranks} ranks`] ??= line;
  const names = Object.keys(roofs), right = 16 + 7 * Math.max(0, ...names.map(name => name.length));
  const plot = axes("roofline", "Points under a roof", [...points, ...peaks], ["flops for each byte received", "FLOP/s of all ranks"], [plain, rate], right);
  const ends = names.map(name => [roof(plot, name, roofs[name].peak, roofs[name].link, least), name]).sort(([y], [other]) => y - other);
  let y = 0;  // names that would lie on each other stand below each other
  for (const [end, name] of ends) plot.at.append(svg("text", { x: plot.X(plot.x1) + 4, y: y = Math.max(y + 13, end + 4), class: "pale" }, name));
  for (const [x, y, line, hollow] of points)
    tipped(dot(plot, x, y, colours[line.algorithm], hollow), `${line.label}${hollow ? ", predicted" : ""}: ${line.product}`,
      [["rate", rate(y)], ["of peak", line.peak ? percent(y / line.peak) : "–"], ["flops a byte", plain(x)], ["received", bytes(line.received)]]);
}

// Draws a roof; gives the height at which it ends.
function roof(plot, name, peak, link, least) {
  const ridge = link ? peak / link : 0, feed = x => link ? Math.min(peak, x * link) : peak;
  const from = link ? Math.max(plot.x0, least / link) : plot.x0;
  const corners = [from, ridge, plot.x1].filter(x => x >= from && x <= plot.x1).map(x => [x, feed(x)]);
  plot.at.append(tipped(svg("path", { d: plot.path(corners), class: "roof" }), `roof: ${name}`,
    [["peak of local GEMMs", rate(peak)], ["links", link ? si(link, "B/s") : "unknown"]]));
  return plot.Y(feed(plot.x1));
}

function scaling(lines) {
  const several = unique(lines.map(line => line.product)).filter(product =>
    unique(lines.filter(line => line.product === product && timed(line).length).map(line => line.ranks)).length > 1);
  $("scaling").hidden = !several.length;
  if (!several.length) return;
  if (!several.includes(state.product)) state.product = several[0];
  $("product").replaceChildren(...several.map(product => html("option", product, { selected: product === state.product })));
  const curves = Object.entries(fastest(lines.filter(line => line.product === state.product)));
  const colours = legend("scaling", curves.map(([name]) => name)), points = curves.flatMap(([, both]) => both.flat());
  const plot = axes("scaling", "Curves: seconds against ranks", points, ["ranks", "seconds"], [plain, seconds], 16, unique(points.map(point => point[0])));
  for (const [name, both] of curves) both.forEach((one, hollow) => one.length && curve(plot, name, one, hollow, colours[name]));
}

// By algorithm, measured and predicted: [ranks, least seconds, line] of each number of ranks.
function fastest(lines) {
  const found = {};
  for (const line of lines) {
    for (const [time, hollow] of timed(line)) {
      const best = (found[line.algorithm] ??= [{}, {}])[Number(hollow)];
      if (!best[line.ranks] || time < best[line.ranks][1]) best[line.ranks] = [line.ranks, time, line];
    }
  }
  return Object.fromEntries(Object.entries(found).map(([name, both]) => [name, both.map(Object.values)]));
}

function curve(plot, name, points, hollow, colour) {
  const [[ranks, time], last] = [points[0], points.at(-1)[0]];
  const drawn = (corners, dashes) => plot.at.append(svg("path", { d: plot.path(corners), fill: "none", "stroke-dasharray": dashes, style: `stroke: ${colour}` }));
  drawn(points, hollow ? "6 4" : "none");
  if (!hollow) drawn([[ranks, time], [last, time * ranks / last]], "1 4");
  for (const [x, y, line] of points)
    tipped(dot(plot, x, y, colour, hollow), `${name}${hollow ? ", predicted" : ""}`,
      [["ranks", plain(x)], ["grid", line.grid], ["time", seconds(y)], ["efficiency", percent(time * ranks / (x * y))]]);
}

// ------------------------------------------------------------------ the timeline

const MARGIN = 76, RIGHT = 24, LANE = 9, RULER = 22;
const runs = lines => lines.filter(line => [line.split, line.predicted].some(told => told && told.timeline.spans.length));

function choose(line) {
  state.run = line;
  state.view = null;
  timeline(shown());
  $("timeline").scrollIntoView({ block: "nearest" });
}

function timeline(lines) {
  const some = runs(lines);
  if (!some.includes(state.run)) [state.run, state.view] = [some[0] ?? null, null];
  $("run").replaceChildren(...some.map(line => html("option", `${line.label}: ${line.product}`, { selected: line === state.run })));
  $("run").onchange = () => choose(some[$("run").selectedIndex]);
  if (!state.run) {
    legend("timeline", []);
    document.querySelector("#timeline .note").textContent = "";
    return nothing("timeline", "No row here has a timeline.");
  }
  const told = [["", state.run.split], ["predicted", state.run.predicted]].filter(([, one]) => one);
  const longest = Math.max(...told.map(([, one]) => one.seconds));
  state.view ??= [0, longest];
  state.longest = longest;
  document.querySelector("#timeline .note").textContent = told.flatMap(([name, one]) => one.timeline.left_out
    .map(text => `left out${name && `, ${name}`}: ${text}`)).join("; ");
  spans(told);
}

function spans(told) {
  const axisNames = unique(told.flatMap(([, one]) => one.timeline.spans.map(span => span[3])).filter(Boolean)).sort();
  const colours = legend("timeline", ["local work", ...axisNames.map(name => `messages along ${name}`)]);
  const fills = ["", ...axisNames].map(name => colours[name ? `messages along ${name}` : "local work"]);
  const tall = LANE * fills.length + 5;
  const rows = told.flatMap(([name, one]) => unique(one.timeline.spans.map(span => span[0])).map(rank => [name, rank, one]));
  const [at, width] = canvas("timeline", RULER + tall * rows.length, "Spans: local work and messages of each rank");
  const [from, to] = state.view, X = time => MARGIN + (width - MARGIN - RIGHT) * (time - from) / (to - from);
  ruler(at, width, X);
  rows.forEach(([name, rank, one], i) => {
    const y = RULER + tall * i;
    at.append(svg("path", { d: `M0,${y}H${width}`, class: "grid" }));
    at.append(svg("text", { x: 0, y: y + tall / 2 + 4, class: name ? "pale" : "" }, name ? `${name} ${rank}` : `rank ${rank}`));
    for (const span of one.timeline.spans.filter(span => span[0] === rank && span[5] >= from && span[4] <= to)) {
      const lane = span[3] ? 1 + axisNames.indexOf(span[3]) : 0, x = Math.max(MARGIN, X(span[4]));
      const look = { x, y: y + 3 + LANE * lane, width: Math.max(1, Math.min(width - RIGHT, X(span[5])) - x), height: LANE - 1 };
      at.append(tipped(svg("rect", { ...look, class: name ? "span predicted" : "span", style: `fill: ${fills[lane]}`, "fill-opacity": lane ? 0.75 : 1 }),
        `${span[1]}${span[2] && ` (${span[2]})`}${name && ", predicted"}`, facts(span)));
    }
  });
}

function facts([rank, , , axis, start, end, received]) {
  const along = axis ? [["along", axis], ["received", `${whole(received)} B`]] : [];
  return [["rank", plain(rank)], ["start", seconds(start)], ["lasts", seconds(end - start)], ...along];
}

function ruler(at, width, X) {
  const [from, to] = state.view, rough = (to - from) / 8, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(times => times * power >= rough);
  for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
    at.append(svg("path", { d: `M${X(time)},${RULER - 4}V9999`, class: "grid" }));
    at.append(svg("text", { x: X(time), y: 12, "text-anchor": "middle", class: "pale" }, seconds(Number(time.toPrecision(6)))));
  }
}

function look(from, to) {
  const wide = Math.min(to - from, state.longest), start = Math.max(0, Math.min(from, state.longest - wide));
  state.view = [start, start + wide];
  timeline(shown());
}

function zoom(times, at) {
  const [from, to] = state.view;
  look(at - (at - from) * times, at + (to - at) * times);
}

function timeAt(event) {
  const box = chart("timeline").firstChild.getBoundingClientRect(), [from, to] = state.view;
  return from + (to - from) * Math.max(0, event.clientX - box.left - MARGIN) / (box.width - MARGIN - RIGHT);
}

function listen() {
  const at = chart("timeline");
  let held = null;
  at.addEventListener("wheel", event => {
    if (!state.run) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY / 500), timeAt(event));
  }, { passive: false });
  at.addEventListener("pointerdown", event => { held = state.run && [timeAt(event), state.view]; });
  document.addEventListener("pointerup", () => { held = null; });
  document.addEventListener("pointermove", event => {
    if (!held) return;
    const moved = held[0] - timeAt(event);
    look(state.view[0] + moved, state.view[1] + moved);
  });
  at.addEventListener("dblclick", () => look(0, state.longest));
  at.addEventListener("keydown", event => {
    if (!state.run) return;
    const [from, to] = state.view, wide = to - from;
    const deeds = { "+": () => zoom(0.5, (from + to) / 2), "-": () => zoom(2, (from + to) / 2), "0": () => look(0, state.longest),
      ArrowLeft: () => look(from - wide / 5, to - wide / 5), ArrowRight: () => look(from + wide / 5, to + wide / 5) };
    if (deeds[event.key]) { event.preventDefault(); deeds[event.key](); }
  });
}

// ------------------------------------------------------------------ all of it

function draw() {
  const lines = shown();
  $("count").textContent = `${lines.length} of ${DATA.lines.length} rows`;
  for (const show of [table, split, timeline, roofline, volume, scaling]) show(lines);
}

document.querySelector("summary").textContent = `${DATA.files.length} result file${DATA.files.length > 1 ? "s" : ""}`;
document.querySelector("details").open = DATA.files.length < 3;
$("files").replaceChildren(...DATA.files.map(file => html("li", [
  html("b", file.file), ` ${[file.where, file.predicted, file.version].filter(Boolean).join("; ")} `, html("code", file.command)])));
$("filter").addEventListener("input", event => { state.words = event.target.value; draw(); });
$("product").addEventListener("change", event => { state.product = event.target.value; draw(); });
window.addEventListener("resize", draw);
listen();
draw();
