"use strict";
// A metric over length: differences to the baseline, levels beside them; the list of methods is the legend.

const LINES = 8; // lines that one panel tells apart
const OWN_EVERYWHERE = 3; // so many methods of the reader's own are in every panel
const COMPRESSED = 0.25; // share of the height that a compressed part takes
const LEAST = 0.5; // share of the height that the methods besides the baseline keep without one
const PANEL_WIDTH = 330; // least width of one of several panels, CSS pixels
const DODGE = 3; // CSS pixels from a method's points to the next one's, so that intervals do not cover one another
const BESIDE = 620; // CSS pixels from which differences and levels stand side by side
const PANEL_HEIGHT = 225;

let walked = []; // rows of points, a row a method, as walk() takes them
let pointed = []; // further points, for the pointer alone

const across = (length) => (byId("unit").value === "tokens" ? length : length / setting().trained);
const spoken = (method, length, entry) =>
  `${setting().methods[method]} at ${tokens(setting().lengths[length])} tokens (${multiple(setting().lengths[length])}): ${entry.text}` +
  `${entry.n ? `, n ${entry.n}` : ""}${entry.clusters && entry.clusters !== entry.n ? ` in ${several(entry.clusters, "cluster")}` : ""}` +
  `${entry.notes ? `; ${entry.notes.join("; ")}` : ""}`;

function drawCurves() {
  const chart = byId("curve-chart");
  const logarithmic = byId("yscale").value === "log" && !metric().scored;
  const families = panelsOf(chosen.methods);
  const alone = families.length === 1;
  const both = differencesOf(chosen.methods).length > 0;
  const panels = families.flatMap((family) => (both ? [{ ...family, difference: true }, family] : [family]));
  const width = widthOf(chart);
  const columns = both ? (width < BESIDE ? 1 : 2) : alone ? 1 : Math.max(1, Math.floor(width / PANEL_WIDTH));
  const rows = Math.ceil(panels.length / columns);
  const scale = scaleOf(logarithmic);
  const gaps = both ? differenceScale() : null;
  const tall = alone ? (width < 480 ? 300 : 400) : PANEL_HEIGHT;
  const height = rows * tall + (alone ? 0 : 10);
  const svg = blank(chart, height);
  chart.dataset.name = `${setting().label} ${metric().label}`.replace(/[^A-Za-z0-9]+/g, "-");
  walked = [];
  pointed = [];
  panels.forEach(({ name, methods, difference }, place) => {
    const [column, row] = [place % columns, Math.floor(place / columns)];
    const wide = width / columns;
    const box = alone
      ? { left: column * wide + 62, right: (column + 1) * wide - 14, top: row * tall + 14, bottom: (row + 1) * tall - 50 }
      : { left: column * wide + 48, right: (column + 1) * wide - 12, top: row * tall + 26, bottom: (row + 1) * tall - 24 };
    if (difference) drawDifferences(svg, gaps, { name, methods, box });
    else drawPanel(svg, scale, { name, methods, box });
  });
  byId("yscale").disabled = metric().scored;
  byId("whole").closest("label").hidden = !scale.left.length && scale.fold === undefined && !byId("whole").checked;
  const notes = [
    both && "Left, or above: the method minus the unmodified model on the same questions, for deciding; hollow: not significant.",
    !alone && "A panel for each family of methods; grey: the methods of the other panels.",
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

/** One panel: its axes, the other methods in grey, lines with their intervals, those in front last. */
function drawPanel(whole, scale, { name, methods, box }) {
  const svg = whole.appendChild(drawing("g", { class: "panel" }));
  const { lengths, trained } = setting();
  const refused = lengths.map((_, length) => methods.filter((method) => at(setting().cells, method, length)?.refused));
  const strip = refused.some((each) => each.length) ? 18 : 0;
  const inner = { ...box, top: box.top + strip };
  const x = placesAcross(inner);
  const y = (value) => (value === null || value === undefined ? null : scaled(scale.range, inner.bottom, inner.top)(scale.at(value)));
  const inside = (place) => (place === null ? null : Math.max(inner.top, Math.min(inner.bottom, place)));
  if (scale.fold !== undefined) {
    svg.append(drawing("rect", { class: "fold", x: inner.left, width: inner.right - inner.left, y: inner.top, height: fixed(y(scale.fold) - inner.top) }));
    // Left of the trained length no interval crosses the fold; a narrow chart has no place for it beside that line's name.
    if (inner.right - inner.left > 320) svg.append(label(inner.left + 4, y(scale.fold) - 3, "compressed", { class: "quiet", "text-anchor": "start" }));
  }
  const alone = name === "";
  const ticks = (scale.ticks ?? []).filter((_, place, all) => alone || all.length < 7 || place % 2 === 0);
  valueAxis(svg, inner, ticks.map((value) => ({ at: y(value), text: numeral(value) })), alone ? metric().label + betterSide[metric().better] : "");
  const places = lengths.map((length) => x(across(length)));
  drawLengths(svg, inner, places, alone);
  const edge = x(across(trained));
  if (edge >= inner.left && edge <= inner.right) {
    rule(svg, "trained", edge, edge, inner.top, inner.bottom);
    const known = methods.map((method) => at(metric().values, method, lengths.indexOf(trained))).filter((entry) => (entry?.value ?? null) !== null);
    const ends = known.flatMap((entry) => [entry.low, entry.value, entry.high]).map(y).filter((end) => end !== null).map(inside);
    const up = ends.length ? inner.bottom - Math.max(...ends) > Math.min(...ends) - inner.top : metric().better > 0;
    if (alone) svg.append(label(0, 0, "trained length", { class: "quiet", "text-anchor": up ? "start" : "end", transform: `translate(${fixed(edge - 4)} ${fixed(up ? inner.bottom - 4 : inner.top + 4)}) rotate(-90)` }));
  }
  if (name) svg.append(label(inner.left, box.top - 6, name, { class: "title" }));
  const left = chosen.methods.filter((method) => !methods.includes(method));
  for (const method of left) outline(svg, entriesOf(method), places, (value) => inside(y(value)));
  const levels = metric().chance;
  if (Math.max(...levels) >= 0.01) {
    const known = levels.map((level, length) => [places[length], y(level)]).filter(([, level]) => level !== null && level >= inner.top - 1 && level <= inner.bottom + 1);
    svg.append(drawing("polyline", { class: "floor", points: [[inner.left, known[0]?.[1] ?? 0], ...known].map((each) => each.map(fixed).join(",")).join(" ") }));
    const place = edge >= inner.left && edge < inner.left + 90 ? edge + 5 : inner.left + 3; // not across "trained length"
    if (known.length && alone) svg.append(label(place, known[0][1] - 4, metric().floor, { class: "quiet" }));
  }
  const ordered = methods.toSorted((one, two) => look(one).front - look(two).front);
  ordered.forEach((method, place) => line(svg, method, dodged(places, place, ordered.length), y, inner));
  refused.forEach((all, length) => {
    if (!all.length) return;
    svg.append(drawing("path", { class: "refused", d: "M-3-3L3 3M-3 3L3-3", transform: `translate(${fixed(places[length])} ${box.top + 8})` }), label(places[length] + 6, box.top + 12, String(all.length), { class: "quiet" }));
    const names = all.map((method) => setting().methods[method]);
    const reasons = [...new Set(all.flatMap((method) => at(metric().values, method, length).notes))];
    const text = [`${tokens(lengths[length])} tokens, ${multiple(lengths[length])}`, ...names, ...reasons].map(shortened).join("\n");
    pointed.push([{ px: places[length], py: box.top + 8, near: 12, x: length, text, said: text, open: () => openCell(all[0], length) }]);
  });
  if (strip) svg.append(label(box.left - 7, box.top + 12, "refused", { class: "quiet", "text-anchor": "end" }));
}

/** From lengths to pixels. */
function placesAcross({ left, right }) {
  const log = byId("xscale").value === "log";
  const ends = [setting().lengths[0], setting().lengths.at(-1)].map(across);
  const room = log ? (ends[1] / ends[0]) ** 0.03 || 1.1 : 0.03 * (ends[1] - ends[0]) || 0.1;
  return scaled(log ? [ends[0] / room, ends[1] * room] : [ends[0] - room, ends[1] + room], left, right, log);
}

function drawLengths(svg, box, places, alone) {
  const { lengths } = setting();
  const byTokens = byId("unit").value === "tokens";
  const shown = labelledLengths(places, byTokens ? 52 : 44).map((index) => ({ at: places[index], text: byTokens ? tokens(lengths[index]) : multiple(lengths[index]) }));
  lengthAxis(svg, box, shown, alone ? (byTokens ? "length (tokens)" : "length (multiples of the trained length)") : "");
}

// Differences ---------------------------------------------------------------------------------------------------------

/** The places of one of several methods: beside those of the others. */
const dodged = (places, place, count) => places.map((at) => at + DODGE * (place - (count - 1) / 2));

/** The paired differences of methods that have a value. */
const differencesOf = (methods) => (metric().paired?.rows ?? []).filter((row) => row.value !== undefined && methods.includes(row.method));

/** Ends of the axis of differences: of losses, one collapsed method does not stretch it; zero is always on it. */
function differenceScale() {
  const rows = differencesOf(chosen.methods);
  const low = Math.min(0, ...rows.map((row) => row.low ?? row.value));
  let top = Math.max(0, ...rows.map((row) => row.high ?? row.value));
  if (metric().metric === "nll" && !byId("whole").checked) {
    const worst = [...Map.groupBy(rows, (row) => row.method).values()].map((own) => Math.max(...own.map((row) => row.value))).sort((one, two) => one - two);
    const middle = (worst[Math.floor((worst.length - 1) / 2)] + worst[Math.ceil((worst.length - 1) / 2)]) / 2;
    top = Math.max(Math.min(top, Math.max(low + 1.5 * (middle - low), worst[0] + 1)), 0);
  }
  const room = 0.05 * Math.max(top - low, 0.02);
  return { range: [low - room, top + room], ticks: round(low, top, 5) };
}

/** One panel of differences: zero is the baseline. */
function drawDifferences(whole, scale, { name, methods, box }) {
  const svg = whole.appendChild(drawing("g", { class: "panel differences" }));
  const { lengths, trained, methods: names } = setting();
  const base = names.indexOf(metric().paired.baseline);
  const alone = name === "";
  const turned = metric().better < 0; // better is up, as in every first figure
  const y = turned ? scaled(scale.range, box.top, box.bottom) : scaled(scale.range, box.bottom, box.top);
  const x = placesAcross(box);
  const places = lengths.map((length) => x(across(length)));
  const title = `minus unmodified, ${metric().paired.unit}${metric().better ? " (better upwards)" : ""}`;
  valueAxis(svg, box, scale.ticks.map((value) => ({ at: y(value), text: numeral(value) })), alone ? title : "");
  drawLengths(svg, box, places, alone);
  const edge = x(across(trained));
  if (edge >= box.left && edge <= box.right) rule(svg, "trained", edge, edge, box.top, box.bottom);
  if (name) svg.append(label(box.left, box.top - 6, `${name}: difference`, { class: "title" }));
  svg.append(drawing("line", { class: "zero", x1: box.left, x2: box.right, y1: fixed(y(0)), y2: fixed(y(0)) }));
  const compared = methods.filter((each) => each !== base).toSorted((one, two) => look(one).front - look(two).front);
  compared.forEach((method, place) => {
    const own = dodged(places, place, compared.length);
    const rows = lengths.map((_, length) => at(metric().paired.rows, method, length)).map((row) => (row?.value === undefined ? null : row));
    const inside = (place) => Math.max(box.top, Math.min(box.bottom, place));
    const points = rows.map((row, length) => {
      if (!row) return { x: own[length], y: null, low: null };
      const cut = turned ? y(row.value) > box.bottom + 1 : y(row.value) < box.top - 1;
      return { x: own[length], y: inside(y(row.value)), cut, low: row.low === null || cut ? null : inside(y(row.low)), high: inside(y(row.high ?? row.value)), hollow: !row.significant };
    });
    curve(svg, points, look(method));
    const [arrow, end] = turned ? ["M-4 0L0 6L4 0Z", box.bottom + 2] : ["M-4 0L0-6L4 0Z", box.top - 2];
    for (const point of points) if (point.cut) svg.append(drawing("path", { class: `arrow hue-${look(method).hue}`, d: arrow, transform: `translate(${fixed(point.x)} ${fixed(end)})` }));
    rows.forEach((row, length) => {
      if (!row) return;
      const text = [`${names[method]} minus unmodified`, `${tokens(lengths[length])} tokens, ${multiple(lengths[length])}`, `${row.text}${row.significant ? "*" : ""} ${row.interval ?? ""}`, row.p].filter(Boolean).join("\n");
      pointed.push([{ px: own[length], py: points[length].y, x: length, text, said: text, open: () => openCell(method, length) }]);
    });
  });
}

/** A method of another panel, in grey. */
function outline(svg, entries, places, y) {
  const known = entries.map((entry, length) => [places[length], entry ? y(entry.value) : null]).filter(([, place]) => place !== null);
  svg.append(drawing("polyline", { class: "other", points: known.map((each) => each.map(fixed).join(",")).join(" ") }));
}

/** The method's entries in the order of lengths. */
const entriesOf = (method) => setting().lengths.map((_, length) => at(metric().values, method, length));

/** A method's line; an end beyond the axis stays at its edge, and what lies above it has an arrow. */
function line(svg, method, places, y, inner) {
  const inside = (place) => (place === null ? null : Math.max(inner.top, Math.min(inner.bottom, place)));
  const points = entriesOf(method).map((entry, length) => {
    const here = entry ? y(entry.value) : null;
    const cut = here !== null && here < inner.top - 1;
    return { x: places[length], y: inside(here), cut, low: entry?.low === null || cut ? null : inside(y(entry?.low)), high: inside(y(entry?.high)) };
  });
  curve(svg, points, look(method));
  for (const { x, cut } of points) if (cut) svg.append(drawing("path", { class: `arrow hue-${look(method).hue}`, d: "M-4 0L0-6L4 0Z", transform: `translate(${fixed(x)} ${fixed(inner.top - 2)})` }));
  const row = entriesOf(method).flatMap((entry, length) => (entry ? [{
    px: places[length], py: points[length].y, x: length, text: hover(method, length, entry), said: spoken(method, length, entry), open: () => openCell(method, length),
  }] : []));
  if (row.length) walked.push(row);
}

function hover(method, length, entry) {
  const all = setting().lengths[length];
  const lines = [setting().methods[method], `${tokens(all)} tokens, ${multiple(all)}`, entry.text, `n ${entry.n}` + (entry.clusters !== entry.n ? ` in ${several(entry.clusters, "cluster")}` : "")];
  return [...lines, ...(entry.notes ?? [])].map(shortened).join("\n");
}

const shortened = (text) => (text.length > 240 ? `${text.slice(0, 240)} \u2026` : text);

/**
 * The value axis: {range, at(value), fold, ticks, left}; at(value) is its place in the range. The baseline is never cut off, and one collapsed method does not
 * stretch the axis: where lower is better, it ends half as far again above the lowest value as the middle method's worst
 * one, but at least 1 above the best method's worst one. If the baseline goes on beyond, the axis does, too; where that
 * would leave the other methods less than half of the height, it is compressed from there (the fold) on. What lies above
 * the baseline, too, is left out. The same as in figures.
 */
function scaleOf(logarithmic) {
  const same = (value) => value;
  if (metric().scored) return { range: [-0.04, 1.04], at: same, ticks: [0, 0.2, 0.4, 0.6, 0.8, 1], left: [] };
  const known = chosen.methods.map((method) => [method, entriesOf(method).filter((entry) => entry && entry.value !== null)]).filter(([, entries]) => entries.length);
  if (!known.length) return { range: [0, 1], at: same, ticks: [], left: [] };
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
  if (fold === undefined) return { range: [place(low) - room, place(top) + room], at: place, ticks: (place === same ? round(low, top, 6) : roundLog(low, top)), left };
  const slope = (spread * COMPRESSED) / (1 - COMPRESSED) / (place(top) - place(fold));
  const at = (value) => (value === null || value === undefined ? null : place(value) <= place(fold) ? place(value) : place(fold) + slope * (place(value) - place(fold)));
  const ticks = [...round(low, fold, 5), ...round(fold, top, 2).filter((value) => value > fold + 0.1 * (top - fold))];
  return { range: [place(low) - room, at(top) + room], at, fold, ticks, left };
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
      return make("label", {}, box, swatch(shown ? look(method) : null), make("bdi", { class: "name" }, nameOf(method)), make("span", { class: "value" }, entry ? entry.text.split(" [")[0] : ""));
    }),
  );
  if (focused !== undefined) byId("method-list").querySelector(`[data-method="${Number(focused)}"]`)?.focus();
}

const NAME = -1;
const PLACE = "Place: tied for 1st where a paired test on the same questions does not tell a method from the best one, after correction for the number of methods; behind where it does.";
const sorted = { column: null, turned: false }; // NAME, a place in the lengths, or null: as the data rank methods

/** Methods by length: sorted by name or, the best first, by a length; filtered by name; ranks at that length, equal ones are ties. */
function drawNumbers() {
  const notes = [];
  const { methods, lengths } = setting();
  if (sorted.column !== null && sorted.column >= lengths.length) sorted.column = null;
  const wanted = byId("table-filter").value.toLowerCase();
  const every = byId("table-rows").value === "all" ? metric().ranked : metric().ranked.filter((method) => chosen.methods.includes(method));
  const place = sorted.column === null || sorted.column === NAME ? lengths.length - 1 : sorted.column;
  const standing = (method) => at(metric().values, method, place)?.place;
  const tied = every.some((method) => standing(method) === "tied") || every.filter((method) => standing(method) === "1st").length > 1;
  const among = metric().ranked.filter((method) => (at(metric().values, method, place)?.value ?? null) !== null).length;
  const said = { "1st": `${tied ? "tied for " : ""}1st of ${among}`, tied: `tied for 1st of ${among}`, behind: "behind" };
  const better = metric().better || 1;
  const worth = (method) => at(metric().values, method, place)?.value ?? -Infinity * better;
  const order = every.slice();
  if (sorted.column === NAME) order.sort((one, two) => methods[one].localeCompare(methods[two]));
  else if (sorted.column !== null) order.sort((one, two) => better * (worth(two) - worth(one)) || 0);
  if (sorted.turned) order.reverse();
  const rows = order.filter((method) => methods[method].toLowerCase().includes(wanted)).map((method) => ({
    name: nameOf(method),
    kind: methods[method] === BASELINE ? "baseline" : undefined,
    cells: [
      make("td", {}, said[standing(method)] ?? ""),
      ...entriesOf(method).map((entry) => (entry ? valueCell(entry, notes) : make("td"))),
    ],
  }));
  const made = table(`${metric().label} by method and length`, ["method", `place at ${tokens(lengths[place])}`, ...heads()], rows, notes);
  byId("curve-table").replaceChildren(...made);
  made[0].querySelectorAll("thead th")[1].title = PLACE;
  made[0].querySelectorAll("thead th").forEach((head, column) => {
    if (column === 1) return;
    const sorts = column === 0 ? NAME : column - 2;
    const button = make("button", { type: "button", class: "sort" });
    button.append(...head.childNodes);
    head.append(button);
    const active = sorted.column === sorts;
    const rises = (sorts === NAME || better < 0) !== sorted.turned;
    head.setAttribute("aria-sort", active ? (rises ? "ascending" : "descending") : "none");
    button.addEventListener("click", () => {
      sorted.turned = active && !sorted.turned;
      sorted.column = sorts;
      drawNumbers();
      byId("curve-table").querySelectorAll("thead button")[column].focus();
    });
  });
  markWide();
  const first = sorted.column === null && metric().ranking ? `Rows by ${metric().ranking}, the best first; a heading sorts them. ` : "";
  byId("table-help").textContent = `${first}${PLACE}`;
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
  byId("table-filter").addEventListener("input", drawNumbers);
  byId("table-rows").addEventListener("change", drawNumbers);
  byId("method-list").addEventListener("change", (event) => {
    const method = Number(event.target.dataset.method);
    pick(event.target.checked ? [...chosen.methods, method] : chosen.methods.filter((each) => each !== method));
  });
  walk(byId("curve-chart"), byId("curve-said"), () => walked, () => pointed);
  let width = widthOf(byId("curve-chart"));
  addEventListener("resize", () => {
    if (width !== widthOf(byId("curve-chart"))) drawCurves();
    width = widthOf(byId("curve-chart"));
  });
}
