"use strict";
// A metric over length: a line and a band a method; the list of methods is the legend.

const PATHS = { // of the marks, around 0
  circle: "M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0Z", square: "M-3.6-3.6H3.6V3.6H-3.6Z", "triangle-up": "M-4.4 3.4H4.4L0-4.4Z",
  diamond: "M0-5L5 0L0 5L-5 0Z", "triangle-down": "M-4.4-3.4H4.4L0 4.4Z",
  cross: "M-1.5-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z", x: "M-4-2L-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0Z",
  star: "M0-5L1.4-1.6L5-1.5L2.2.7L3.1 4.2L0 2.2L-3.1 4.2L-2.2.7L-5-1.5L-1.4-1.6Z", pentagon: "M0-4.6L4.4-1.4L2.7 3.7H-2.7L-4.4-1.4Z",
};
const LINES = 8; // lines that one panel tells apart
const OWN_EVERYWHERE = 3; // so many methods of the reader's own are in every panel
const COMPRESSED = 0.25; // share of the height that a compressed part takes
const LEAST = 0.5; // share of the height that the methods besides the baseline keep without one
const PANEL_WIDTH = 330; // least width of one of several panels, CSS pixels
const PANEL_HEIGHT = 225;

let walked = []; // rows of points, a row a method, as walk() takes them

const across = (length) => (byId("unit").value === "tokens" ? length : length / setting().trained);
const spoken = (method, length, entry) =>
  `${setting().methods[method]} at ${tokens(setting().lengths[length])} tokens (${multiple(setting().lengths[length])}): ${entry.text}` +
  `${entry.n ? `, n ${entry.n}` : ""}${entry.clusters && entry.clusters !== entry.n ? ` in ${several(entry.clusters, "cluster")}` : ""}` +
  `${entry.notes ? `; ${entry.notes.join("; ")}` : ""}`;

function drawCurves() {
  const chart = byId("curve-chart");
  const logarithmic = byId("yscale").value === "log" && !metric().scored;
  const panels = panelsOf(chosen.methods);
  const columns = panels.length === 1 ? 1 : Math.max(1, Math.floor((paper ? PAPER_WIDTH : chart.clientWidth) / PANEL_WIDTH));
  const scale = scaleOf(logarithmic);
  const traces = [];
  walked = [];
  const shared = { annotations: [], shapes: [] };
  const rows = Math.ceil(panels.length / columns);
  panels.forEach(({ name, methods }, place) => drawPanel(traces, shared, scale, { name, methods, place, columns, rows }));
  chart.style.height = panels.length === 1 ? "" : `${60 + rows * PANEL_HEIGHT}px`;
  Plotly.react(chart, traces, layout(shared), QUIET);
  byId("yscale").disabled = metric().scored;
  byId("whole").closest("label").hidden = !scale.left.length && scale.fold === undefined && !byId("whole").checked;
  const notes = [
    panels.length > 1 && "A panel for each family of methods; grey: the methods of the other panels.",
    scale.fold !== undefined && `Above ${numeral(scale.fold)} the value axis is compressed.`,
    scale.left.length && `Beyond the axis: ${scale.left.map((name) => `\u201c${name}\u201d`).join(", ")}; \u201cwhole range\u201d shows all.`,
  ];
  byId("curve-said").textContent = notes.filter(Boolean).join(" ");
  drawMethods();
  drawNumbers();
}

/** Name and methods of each panel: one where the lines are few, else one a family, with the baseline in each. */
function panelsOf(chosenMethods) {
  const { methods } = setting();
  const first = chosenMethods.filter((method) => methods[method] === BASELINE);
  const own = chosenMethods.filter((method) => look(method).front && !first.includes(method));
  const others = chosenMethods.filter((method) => !first.includes(method) && !own.includes(method));
  if (chosenMethods.length <= LINES) return [{ name: "", methods: [...first, ...own, ...others] }];
  const every = [...first, ...(own.length <= OWN_EVERYWHERE ? own : [])];
  const found = [];
  for (const family of data.families) {
    const members = chosenMethods.filter((method) => look(method).family === family && !every.includes(method));
    for (let start = 0; start < members.length; start += LINES - 1) {
      const again = members.length > LINES - 1 ? `, ${start / (LINES - 1) + 1}` : "";
      found.push({ name: family + again, methods: [...every, ...members.slice(start, start + LINES - 1)] });
    }
  }
  return found;
}

/** One panel: its axes, the other methods in grey, bands and lines, those in front last. */
function drawPanel(traces, shared, scale, { name, methods, place, columns, rows }) {
  const [x, y, strip] = [2 * place + 1, 2 * place + 1, 2 * place + 2].map((number) => (number === 1 ? "" : number));
  const axes = { xaxis: `x${x}`, yaxis: `y${y}` };
  const refused = refusedMarks(methods, { xaxis: `x${x}`, yaxis: `y${strip}` });
  const all = chosen.methods.filter((method) => !methods.includes(method));
  if (all.length) traces.push({ ...others(all, scale), ...axes });
  if (methods.length <= LINES) for (const method of methods) traces.push({ ...band(method, scale), ...axes });
  const ordered = methods.toSorted((one, two) => look(one).front - look(two).front);
  for (const method of ordered) line(method, traces, scale, axes);
  if (refused.x.length) traces.push(refused);
  const floor = floorLine(scale);
  if (floor) traces.push({ ...floor, ...axes });
  const column = place % columns;
  const row = Math.floor(place / columns);
  const sides = rows * columns === 1 ? { x: [0, 1], y: [0, 1] } : {
    x: [column / columns + (column ? 0.05 : 0), (column + 1) / columns - (column < columns - 1 ? 0.01 : 0)],
    y: [1 - (row + 1) / rows + 0.19 / rows, 1 - row / rows - 0.09 / rows],
  };
  Object.assign(shared, curveAxes(scale, refused.x.length > 0, sides, [x, y, strip], rows * columns === 1));
  const where = { xref: `x${x}`, yref: `y${y} domain` };
  const trained = across(setting().trained);
  shared.shapes.push({ type: "line", x0: trained, x1: trained, ...where, y0: 0, y1: 1, line: { color: colour("tone-quiet"), width: 1, dash: "dash" }, layer: "below" });
  if (scale.fold !== undefined) {
    shared.shapes.push({ type: "rect", xref: `x${x} domain`, x0: 0, x1: 1, yref: `y${y}`, y0: scale.at(scale.fold), y1: scale.range[1], fillcolor: faint("tone-quiet", 0.13), line: { width: 0 }, layer: "below" });
    shared.annotations.push({ x: 0.5, xref: `x${x} domain`, y: scale.at(scale.fold), yref: `y${y}`, text: "compressed", showarrow: false, yanchor: "bottom", font: { size: 10.5, color: colour("tone-quiet") } });
  }
  if (name) shared.annotations.push({ text: plain(name), x: sides.x[0], y: sides.y[1], xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 12.5 } });
  else {
    const log = byId("xscale").value === "log";
    shared.annotations.push({
      x: log ? Math.log10(trained) : trained, xref: `x${x}`, yref: `y${y} domain`, y: metric().better > 0 ? 0.01 : 0.97, text: "trained length", textangle: -90,
      showarrow: false, xanchor: "right", yanchor: metric().better > 0 ? "bottom" : "top", font: { size: 11, color: colour("tone-quiet") },
    });
  }
}

/** All other methods as one grey line. */
function others(methods, scale) {
  const outline = { x: [], y: [] };
  for (const method of methods) {
    entriesOf(method).forEach((entry, length) => {
      outline.x.push(across(setting().lengths[length]));
      outline.y.push(entry ? scale.at(entry.value) : null);
    });
    outline.x.push(null);
    outline.y.push(null);
  }
  return { ...outline, type: "scatter", mode: "lines", line: { width: 1, color: colour("tone-line") }, hoverinfo: "skip" };
}

/** The method's entries in the order of lengths. */
const entriesOf = (method) => setting().lengths.map((_, length) => at(metric().values, method, length));

/** A method's band: a closed outline around each run of lengths that have intervals. */
function band(method, scale) {
  const outline = { x: [], y: [] };
  let run = [];
  const close = () => {
    for (const [length, side] of [...run.map((each) => [each, "low"]), ...run.toReversed().map((each) => [each, "high"])]) {
      outline.x.push(across(setting().lengths[length]));
      outline.y.push(scale.at(at(metric().values, method, length)[side]));
    }
    outline.x.push(null);
    outline.y.push(null);
    run = [];
  };
  entriesOf(method).forEach((entry, length) => (entry && entry.low !== null ? run.push(length) : run.length && close()));
  if (run.length) close();
  return { ...outline, type: "scatter", mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: faint(`hue-${look(method).hue}`, 0.1), hoverinfo: "skip" };
}

function line(method, traces, scale, axes) {
  const { hue, mark, dash, hollow, front } = look(method);
  const tone = `hue-${hue}`;
  const points = [];
  const trace = {
    type: "scatter", mode: "lines+markers", x: [], y: [], text: [], hoverinfo: "text", customdata: [], ...axes,
    line: { color: colour(tone), width: front ? 3.5 : hue ? 2 : 2.5, dash }, marker: { color: colour(tone), symbol: hollow ? `${mark}-open` : mark, size: front ? 11 : 8 },
    error_y: { type: "data", symmetric: false, array: [], arrayminus: [], width: 0, thickness: 1, color: faint(tone, 0.55) },
  };
  const number = traces.length;
  entriesOf(method).forEach((entry, length) => {
    if (!entry) return;
    const place = trace.x.length;
    trace.x.push(across(setting().lengths[length]));
    const height = scale.at(entry.value);
    trace.y.push(height);
    trace.error_y.array.push(entry.high === null ? 0 : scale.at(entry.high) - height);
    trace.error_y.arrayminus.push(entry.low === null ? 0 : height - scale.at(entry.low));
    trace.customdata.push([method, length]);
    trace.text.push(hover(method, length, entry));
    points.push({
      x: length,
      said: spoken(method, length, entry),
      show: () => (entry.value === null ? Plotly.Fx.unhover(byId("curve-chart")) : Plotly.Fx.hover(byId("curve-chart"), [{ curveNumber: number, pointNumber: place }], axes.xaxis + axes.yaxis)),
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
function refusedMarks(methods, axes) {
  const marks = {
    type: "scatter", mode: "markers+text", x: [], y: [], text: [], hovertext: [], customdata: [], hoverinfo: "text", ...axes, cliponaxis: false,
    textposition: "middle right", textfont: { size: 11, color: colour("tone-quiet") }, marker: { symbol: "x-thin", size: 7, line: { width: 1.5, color: colour("tone-quiet") } },
  };
  setting().lengths.forEach((all, length) => {
    const refused = methods.filter((method) => at(metric().values, method, length)?.text === "refused");
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

/** A dotted line at what needs no model: the score of guessing, or the loss of counting. */
function floorLine(scale) {
  const levels = metric().chance;
  if (Math.max(...levels) < 0.01) return null;
  return {
    type: "scatter", mode: "lines", x: setting().lengths.map(across), y: levels.map((level) => scale.at(level)), hoverinfo: "text", text: levels.map((level) => `${metric().floor} ${level}`),
    line: { color: colour("tone-quiet"), width: 1.5, dash: "dot" },
  };
}

/**
 * The value axis: {range, at(value), fold, ticks, left}. The baseline is never cut off, and one collapsed method does not
 * stretch the axis: where lower is better, it ends half as far again above the lowest value as the middle method's worst
 * one, but at least 1 above the best method's worst one. If the baseline goes on beyond, the axis does, too; where that
 * would leave the other methods less than half of the height, it is compressed from there (the fold) on. What lies above
 * the baseline, too, is left out. The same as in figures.
 */
function scaleOf(logarithmic) {
  const same = (value) => value;
  if (metric().scored) return { range: [-0.04, 1.04], at: same, left: [] };
  const known = chosen.methods.map((method) => [method, entriesOf(method).filter((entry) => entry && entry.value !== null)]).filter(([, entries]) => entries.length);
  if (!known.length) return { at: same, left: [] };
  const ends = (curves, side, pick) => pick(...curves.flatMap(([, entries]) => entries.map((entry) => entry[side] ?? entry.value)));
  const low = ends(known, "low", Math.min);
  let top = ends(known, "high", Math.max);
  let fold;
  if (metric().better < 0 && !byId("whole").checked) {
    const isBase = ([method]) => setting().methods[method] === BASELINE;
    const rest = known.some((curve) => !isBase(curve)) ? known.filter((curve) => !isBase(curve)) : known;
    const worst = rest.map(([, entries]) => Math.max(...entries.map((entry) => entry.value))).sort((one, two) => one - two);
    const middle = (worst[Math.floor((worst.length - 1) / 2)] + worst[Math.ceil((worst.length - 1) / 2)]) / 2;
    const log = metric().metric.endsWith("perplexity") ? Math.log : same;
    const back = metric().metric.endsWith("perplexity") ? Math.exp : same;
    top = Math.min(ends(rest, "high", Math.max), back(Math.max(log(low) + 1.5 * (log(middle) - log(low)), log(worst[0]) + 1)));
    const base = ends(known.filter(isBase), "high", Math.max); // -Infinity without one
    if (base > top) {
      const place = logarithmic ? Math.log : same;
      if ((place(top) - place(low)) / (place(base) - place(low)) < LEAST) fold = top;
      top = base;
    }
  }
  const left = known.filter(([, entries]) => entries.some((entry) => entry.value > top)).map(([method]) => setting().methods[method]);
  const place = logarithmic && low > 0 ? Math.log10 : same;
  const spread = place(fold ?? top) - place(low);
  const room = 0.05 * Math.max(spread, 0.02);
  if (fold === undefined) return { range: [place(low) - room, place(top) + room], at: same, left, logarithmic: place !== same };
  const slope = (spread * COMPRESSED) / (1 - COMPRESSED) / (place(top) - place(fold));
  const at = (value) => (value === null || value === undefined ? null : place(value) <= place(fold) ? place(value) : place(fold) + slope * (place(value) - place(fold)));
  const ticks = [...round(low, fold, 5), ...round(fold, top, 2).filter((value) => value > fold + 0.1 * (top - fold))];
  return { range: [place(low) - room, at(top) + room], at, fold, ticks, left };
}

const numeral = (value) => String(Number(value.toPrecision(3)));

/** Round numbers between two ends, about so many. */
function round(low, top, count) {
  const size = 10 ** Math.floor(Math.log10((top - low) / count));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * size).find((each) => (top - low) / each <= count + 1);
  const found = [];
  for (let place = Math.ceil(low / step); place * step <= top; place += 1) found.push(Number((place * step).toPrecision(12)));
  return found;
}

function curveAxes(scale, refused, sides, [x, y, strip], alone) {
  const { lengths } = setting();
  const byTokens = byId("unit").value === "tokens";
  const log = byId("xscale").value === "log";
  const place = log ? Math.log2 : (value) => value;
  const span = place(across(lengths.at(-1))) - place(across(lengths[0]));
  const shown = labelledLengths(lengths.map((length) => place(across(length))), Math.max(span / (alone ? 9 : 5), 1e-9)).map((index) => lengths[index]);
  const better = { "1": ", higher is better", "-1": ", lower is better", "0": "" };
  const high = sides.y[1] - sides.y[0];
  const folded = scale.fold !== undefined;
  return {
    [`xaxis${x}`]: axis({
      type: log ? "log" : "linear", title: alone ? { text: byTokens ? "length (tokens)" : "length (multiples of the trained length)" } : undefined, anchor: `y${y}`, domain: sides.x,
      tickvals: shown.map(across), ticktext: shown.map((length) => (byTokens ? tokens(length) : multiple(length))), showgrid: false, ticks: "outside",
    }),
    [`yaxis${y}`]: axis({
      type: scale.logarithmic ? "log" : "linear", range: scale.range, autorange: scale.range === undefined, anchor: `x${x}`,
      domain: refused ? [sides.y[0], sides.y[0] + 0.93 * high] : sides.y, dtick: scale.logarithmic ? "D2" : undefined,
      tickvals: folded ? scale.ticks.map(scale.at) : undefined, ticktext: folded ? scale.ticks.map(numeral) : undefined, nticks: alone ? undefined : 5,
      title: alone ? { text: plain(metric().label + better[metric().better]) } : undefined, automargin: alone,
    }),
    [`yaxis${strip}`]: axis({ domain: [sides.y[0] + 0.945 * high, sides.y[1]], range: [-1, 1], anchor: `x${x}`, visible: refused, showgrid: false, showline: false, ticks: "", tickvals: [0], ticktext: ["refused"], tickfont: { size: 11, color: colour("tone-quiet") }, automargin: alone }),
  };
}

/** The places that have room for a label. */
function labelledLengths(places, gap) {
  const kept = [];
  places.forEach((place, index) => {
    if (!kept.length || place - places[kept.at(-1)] >= gap) kept.push(index);
  });
  return kept;
}

/** The list of methods, the baseline, the reader's own, then the best first: it chooses them, and is the legend. */
function drawMethods() {
  const { methods, lengths } = setting();
  const wanted = byId("method-filter").value.toLowerCase();
  const order = metric().ranked.toSorted((one, two) => (methods[two] === BASELINE) - (methods[one] === BASELINE) || look(two).front - look(one).front);
  byId("method-filter").hidden = methods.length <= 12;
  byId("method-count").textContent = `${chosen.methods.length} of ${methods.length}, values at ${tokens(lengths.at(-1))}`;
  const focused = document.activeElement?.dataset?.method;
  byId("method-list").replaceChildren(
    ...order.filter((method) => methods[method].toLowerCase().includes(wanted)).map((method) => {
      const shown = chosen.methods.includes(method);
      const entry = at(metric().values, method, lengths.length - 1);
      const box = make("input", { type: "checkbox", "data-method": method, checked: shown });
      return make("label", {}, box, swatch(shown ? look(method) : null), make("bdi", { class: "name" }, methods[method]), make("span", { class: "value" }, entry ? entry.text.split(" [")[0] : ""));
    }),
  );
  if (focused !== undefined) byId("method-list").querySelector(`[data-method="${Number(focused)}"]`)?.focus();
}

function swatch(shown) {
  const drawing = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const picture = drawing("svg", { viewBox: "-15 -6 30 12", "aria-hidden": "true" });
  if (shown === null) return picture;
  const { hue, mark, dash, hollow, front } = shown;
  picture.setAttribute("class", `hue-${hue}`);
  picture.append(drawing("path", { d: "M-15 0H15", stroke: "currentColor", "stroke-width": front ? 3.5 : 2, "stroke-dasharray": dash === "solid" ? "" : dash.replaceAll("px", "") }), drawing("path", { d: PATHS[mark], fill: hollow ? "var(--paper)" : "currentColor", stroke: "currentColor" }));
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
