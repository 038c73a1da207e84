"use strict";
// A metric over length: a line and a band a method; the list of methods is the legend.

const PATHS = { // of the marks, around 0
  circle: "M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0Z", square: "M-3.6-3.6H3.6V3.6H-3.6Z", "triangle-up": "M-4.4 3.4H4.4L0-4.4Z",
  diamond: "M0-5L5 0L0 5L-5 0Z", "triangle-down": "M-4.4-3.4H4.4L0 4.4Z",
  cross: "M-1.5-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z", x: "M-4-2L-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0Z",
  star: "M0-5L1.4-1.6L5-1.5L2.2.7L3.1 4.2L0 2.2L-3.1 4.2L-2.2.7L-5-1.5L-1.4-1.6Z",
};
const STROKES = { solid: "", dash: "6 4", dashdot: "6 3 2 3", dot: "2 3" };
const looks = (place) => ({ tone: `slot-${place ? 1 + ((place - 1) % 7) : 0}`, mark: MARKS[place % 8], dash: DASHES[(place + Math.floor(place / 8)) % 4] });
const BAND_METHODS = 8; // beyond so many, bands hide more than they show

let walked = []; // rows of points, a row a method, as walk() takes them

const across = (length) => (byId("unit").value === "tokens" ? length : length / setting().trained);
const spoken = (method, length, entry) =>
  `${setting().methods[method]} at ${tokens(setting().lengths[length])} tokens (${multiple(setting().lengths[length])}): ${entry.text}` +
  `${entry.n ? `, n ${entry.n}` : ""}${entry.clusters && entry.clusters !== entry.n ? ` in ${several(entry.clusters, "cluster")}` : ""}` +
  `${entry.notes ? `; ${entry.notes.join("; ")}` : ""}`;

function drawCurves() {
  const chart = byId("curve-chart");
  const logarithmic = byId("yscale").value === "log" && !metric().scored;
  const traces = [];
  walked = [];
  if (chosen.methods.length <= BAND_METHODS) for (const method of chosen.methods) traces.push(band(method));
  for (const method of chosen.methods) line(method, traces);
  const refused = refusedMarks();
  if (refused.x.length) traces.push(refused);
  const chance = chanceLine();
  if (chance) traces.push(chance);
  const [range, left] = valueRange(logarithmic);
  Plotly.react(chart, traces, curveLayout(range, logarithmic, refused.x.length > 0), QUIET);
  byId("yscale").disabled = metric().scored;
  byId("whole").closest("label").hidden = !left.length && !byId("whole").checked;
  byId("curve-said").textContent = left.length ? `Beyond the axis: ${left.map((name) => `\u201c${name}\u201d`).join(", ")}; \u201cwhole range\u201d shows all.` : "";
  drawMethods();
  drawNumbers();
}

/** The method's entries in the order of lengths. */
const entriesOf = (method) => setting().lengths.map((_, length) => at(metric().values, method, length));

/** A method's band: a closed outline around each run of lengths that have intervals. */
function band(method) {
  const outline = { x: [], y: [] };
  let run = [];
  const close = () => {
    for (const [length, side] of [...run.map((each) => [each, "low"]), ...run.toReversed().map((each) => [each, "high"])]) {
      outline.x.push(across(setting().lengths[length]));
      outline.y.push(at(metric().values, method, length)[side]);
    }
    outline.x.push(null);
    outline.y.push(null);
    run = [];
  };
  entriesOf(method).forEach((entry, length) => (entry && entry.low !== null ? run.push(length) : run.length && close()));
  if (run.length) close();
  const { tone } = looks(slot(method));
  return { ...outline, type: "scatter", mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: faint(tone, 0.1), hoverinfo: "skip" };
}

function line(method, traces) {
  const { tone, mark, dash } = looks(slot(method));
  const points = [];
  const trace = {
    type: "scatter", mode: "lines+markers", x: [], y: [], text: [], hoverinfo: "text", customdata: [],
    line: { color: colour(tone), width: 2, dash }, marker: { color: colour(tone), symbol: mark, size: 8 },
    error_y: { type: "data", symmetric: false, array: [], arrayminus: [], width: 0, thickness: 1, color: faint(tone, 0.55) },
  };
  const number = traces.length;
  entriesOf(method).forEach((entry, length) => {
    if (!entry) return;
    const place = trace.x.length;
    trace.x.push(across(setting().lengths[length]));
    trace.y.push(entry.value);
    trace.error_y.array.push(entry.high === null ? 0 : entry.high - entry.value);
    trace.error_y.arrayminus.push(entry.low === null ? 0 : entry.value - entry.low);
    trace.customdata.push([method, length]);
    trace.text.push(hover(method, length, entry));
    points.push({
      x: length,
      said: spoken(method, length, entry),
      show: () => (entry.value === null ? Plotly.Fx.unhover(byId("curve-chart")) : Plotly.Fx.hover(byId("curve-chart"), [{ curveNumber: number, pointNumber: place }])),
      open: () => openCell(method, length),
    });
  });
  traces.push(trace);
  if (points.length) walked.push(points);
}

function hover(method, length, entry) {
  const all = setting().lengths[length];
  const lines = [setting().methods[method], `${tokens(all)} tokens, ${multiple(all)}`, entry.text, `n ${entry.n}` + (entry.clusters !== entry.n ? ` in ${several(entry.clusters, "cluster")}` : "")];
  return [...lines, ...(entry.notes ?? [])].map((each) => plain(folded(each))).join("<br>");
}

/** A text in lines of some 60 characters; plotly makes the breaks. */
const folded = (text) => text.replace(/(.{45,60}?)\s+(?=\S)/g, "$1\n").split("\n").slice(0, 6).join(" \u2026 ").slice(0, 240);

/** A cross above the axis at each length where chosen methods are refused: which one, or how many. */
function refusedMarks() {
  const marks = {
    type: "scatter", mode: "markers+text", x: [], y: [], text: [], hovertext: [], customdata: [], hoverinfo: "text", yaxis: "y2", cliponaxis: false,
    textposition: "middle right", textfont: { size: 11, color: colour("tone-quiet") }, marker: { symbol: "x-thin", size: 7, line: { width: 1.5, color: colour("tone-quiet") } },
  };
  setting().lengths.forEach((all, length) => {
    const refused = chosen.methods.filter((method) => at(metric().values, method, length)?.text === "refused");
    if (!refused.length) return;
    const names = refused.map((method) => setting().methods[method]);
    const reasons = [...new Set(refused.flatMap((method) => at(metric().values, method, length).notes))];
    marks.x.push(across(all));
    marks.y.push(0);
    marks.text.push(` ${refused.length}`);
    marks.hovertext.push([`${tokens(all)} tokens, ${multiple(all)}`, ...names, ...reasons].map((each) => plain(folded(each))).join("<br>"));
    marks.customdata.push([refused[0], length]);
  });
  return marks;
}

function chanceLine() {
  const levels = metric().chance;
  if (Math.max(...levels) < 0.01) return null;
  return {
    type: "scatter", mode: "lines", x: setting().lengths.map(across), y: levels, hoverinfo: "text", text: levels.map((level) => `chance ${level}`),
    line: { color: colour("tone-quiet"), width: 1.5, dash: "dot" },
  };
}

/**
 * The ends of the value axis, and what lies beyond. One collapsed method must not stretch an axis where lower is better:
 * it ends half as far again above the lowest value as the middle method's worst one, but at least 1 above the best
 * method's worst one.
 */
function valueRange(logarithmic) {
  if (metric().scored) return [[-0.04, 1.04], []];
  const known = chosen.methods.map((method) => entriesOf(method).filter((entry) => entry && entry.value !== null)).filter((entries) => entries.length);
  if (!known.length) return [undefined, []];
  const ends = (side, pick) => pick(...known.flat().map((entry) => entry[side] ?? entry.value));
  const low = ends("low", Math.min);
  let top = ends("high", Math.max);
  if (metric().better < 0 && !byId("whole").checked) {
    const worst = known.map((entries) => Math.max(...entries.map((entry) => entry.value))).sort((one, two) => one - two);
    const middle = (worst[Math.floor((worst.length - 1) / 2)] + worst[Math.ceil((worst.length - 1) / 2)]) / 2;
    const log = metric().metric.endsWith("perplexity") ? Math.log : (value) => value;
    const back = metric().metric.endsWith("perplexity") ? Math.exp : (value) => value;
    top = Math.min(top, back(Math.max(log(low) + 1.5 * (log(middle) - log(low)), log(worst[0]) + 1)));
  }
  const left = chosen.methods.filter((method) => entriesOf(method).some((entry) => entry && entry.value > top)).map((method) => setting().methods[method]);
  if (logarithmic && low > 0) {
    const room = 0.04 * Math.max(Math.log10(top / low), 0.1);
    return [[Math.log10(low) - room, Math.log10(top) + room], left];
  }
  const room = 0.05 * Math.max(top - low, 0.02);
  return [[low - room, top + room], left];
}

function curveLayout(range, logarithmic, refused) {
  const { lengths, trained } = setting();
  const byTokens = byId("unit").value === "tokens";
  const log = byId("xscale").value === "log";
  const place = log ? Math.log2 : (value) => value;
  const span = place(across(lengths.at(-1))) - place(across(lengths[0]));
  const shown = labelledLengths(lengths.map((length) => place(across(length))), Math.max(span / 9, 1e-9)).map((index) => lengths[index]);
  const sides = { "1": ", higher is better", "-1": ", lower is better", "0": "" };
  return layout({
    xaxis: axis({
      type: log ? "log" : "linear", title: { text: byTokens ? "length (tokens)" : "length (multiples of the trained length)" },
      tickvals: shown.map(across), ticktext: shown.map((length) => (byTokens ? tokens(length) : multiple(length))), showgrid: false, ticks: "outside",
    }),
    yaxis: axis({
      type: logarithmic ? "log" : "linear", range, autorange: range === undefined, domain: [0, refused ? 0.93 : 1], dtick: logarithmic ? "D2" : undefined,
      title: { text: plain(metric().label + sides[metric().better]) },
    }),
    yaxis2: axis({ domain: [0.945, 1], range: [-1, 1], visible: refused, showgrid: false, showline: false, ticks: "", tickvals: [0], ticktext: ["refused"], tickfont: { size: 11, color: colour("tone-quiet") } }),
    shapes: [{ type: "line", x0: across(trained), x1: across(trained), yref: "paper", y0: 0, y1: 1, line: { color: colour("tone-quiet"), width: 1, dash: "dash" }, layer: "below" }],
    annotations: [{
      x: log ? Math.log10(across(trained)) : across(trained), yref: "paper", y: metric().better > 0 ? 0.01 : 0.9, text: "trained length", textangle: -90,
      showarrow: false, xanchor: "right", yanchor: metric().better > 0 ? "bottom" : "top", font: { size: 11, color: colour("tone-quiet") },
    }],
  });
}

/** The places that have room for a label. */
function labelledLengths(places, gap) {
  const kept = [];
  places.forEach((place, index) => {
    if (!kept.length || place - places[kept.at(-1)] >= gap) kept.push(index);
  });
  return kept;
}

/** The list of methods, the baseline and then the best first: it chooses them, and is the legend. */
function drawMethods() {
  const { methods, lengths } = setting();
  const wanted = byId("method-filter").value.toLowerCase();
  const order = metric().ranked.toSorted((one, two) => (methods[two] === BASELINE) - (methods[one] === BASELINE));
  byId("method-filter").hidden = methods.length <= 12;
  byId("method-count").textContent = `${chosen.methods.length} of ${methods.length}, values at ${tokens(lengths.at(-1))}`;
  const focused = document.activeElement?.dataset?.method;
  byId("method-list").replaceChildren(
    ...order.filter((method) => methods[method].toLowerCase().includes(wanted)).map((method) => {
      const shown = chosen.methods.includes(method);
      const entry = at(metric().values, method, lengths.length - 1);
      const box = make("input", { type: "checkbox", "data-method": method, checked: shown });
      return make("label", {}, box, swatch(shown ? slot(method) : null), make("bdi", { class: "name" }, methods[method]), make("span", { class: "value" }, entry ? entry.text.split(" [")[0] : ""));
    }),
  );
  if (focused !== undefined) byId("method-list").querySelector(`[data-method="${Number(focused)}"]`)?.focus();
}

function swatch(place) {
  const drawing = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const picture = drawing("svg", { viewBox: "-15 -6 30 12", "aria-hidden": "true" });
  if (place === null) return picture;
  const { tone, mark, dash } = looks(place);
  picture.setAttribute("class", tone);
  picture.append(drawing("path", { d: "M-15 0H15", stroke: "currentColor", "stroke-width": 2, "stroke-dasharray": STROKES[dash] }), drawing("path", { d: PATHS[mark], fill: "currentColor" }));
  return picture;
}

function drawNumbers() {
  const notes = [];
  const rows = chosen.methods.map((method) => ({
    name: setting().methods[method],
    kind: setting().methods[method] === BASELINE ? "baseline" : undefined,
    cells: entriesOf(method).map((entry) => (entry ? valueCell(entry, notes) : make("td"))),
  }));
  byId("curve-table").replaceChildren(...table(`${metric().label} by method and length`, ["method", ...heads()], rows, notes));
}

/** A value with its interval below it, and the numbers of its notes. */
function valueCell(entry, notes) {
  const [value, interval] = entry.text.split(" [");
  const marks = (entry.notes ?? []).map((note) => (notes.includes(note) ? notes.indexOf(note) : notes.push(note) - 1) + 1);
  const cell = make("td", { class: entry.value === null ? "none" : undefined }, value);
  if (marks.length) cell.append(make("sup", {}, marks.join(", ")));
  if (interval) cell.append(make("small", {}, `[${interval}`));
  return cell;
}

function startCurves() {
  for (const id of ["unit", "xscale", "yscale", "whole"]) byId(id).addEventListener("change", drawCurves);
  byId("pick-best").addEventListener("click", () => pick(best()));
  byId("pick-all").addEventListener("click", () => pick(metric().ranked.slice()));
  byId("pick-none").addEventListener("click", () => pick([]));
  byId("method-filter").addEventListener("input", drawMethods);
  byId("method-list").addEventListener("change", (event) => {
    const method = Number(event.target.dataset.method);
    pick(event.target.checked ? [...chosen.methods, method] : chosen.methods.filter((each) => each !== method));
  });
  walk(byId("curve-chart"), byId("curve-said"), () => walked);
  drawCurves();
  byId("curve-chart").on("plotly_click", ({ points }) => points[0].customdata && openCell(...points[0].customdata));
}
