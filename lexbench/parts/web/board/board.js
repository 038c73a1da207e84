"use strict";
// The board: sort, filter and page through entries; compare two of them, with intervals and sample by sample.

const data = JSON.parse(document.getElementById("data").textContent);
const PAGE = 100; // rows
const COLUMNS = ["place", "model", "method", "task", "length", "value", "n", "submission", "note"];

/** Each entry as an object; the page holds columns, and names as places in lists. */
const entries = data.columns.id.map((id, place) => {
  const own = (name) => data.columns[name][place];
  const named = (name) => data.names[name][own(name)];
  return {
    id, at: place, model: named("model"), method: named("method"), task: named("task"), submission: data.submissions[own("submission")], folder: data.folders[own("submission")], length: own("length"), trained: own("trained"),
    metric: named("metric"), better: data.better[own("metric")], value: own("value"), low: own("low"), high: own("high"), place: own("place"), among: own("among"), n: own("n"), asked: own("asked"),
    note: own("note") === null ? "" : data.notes[own("note")], ranked: own("note") === null && own("value") !== null, look: data.looks[own("method")], refused: own("refused"), samples: own("samples"),
  };
});
const chosen = { sort: "place", down: false, page: 0, ticked: [], sample: 0 };

const STANDING = { "1st": 0, tied: 1, behind: 2 };
const groupOf = (entry) => `${entry.asked} ${entry.metric}`;
const leaders = new Map();
for (const entry of entries.filter(({ place }) => place === "1st" || place === "tied")) leaders.set(groupOf(entry), (leaders.get(groupOf(entry)) ?? 0) + 1);

/** The place of an entry among those that were asked the same, in words. */
function placeOf(entry) {
  if (!entry.place || entry.among < 2) return "";
  if (entry.place === "behind") return "behind";
  return `${leaders.get(groupOf(entry)) > 1 ? "tied for " : ""}1st of ${entry.among}`;
}

const texts = (names) => [...new Set(names)].sort((one, two) => (typeof one === "number" ? one - two : one.localeCompare(two)));

function fill(id, label, values) {
  byId(id).replaceChildren(make("option", { value: "" }, label), ...values.map((value) => make("option", { value }, typeof value === "number" ? tokens(value) : value)));
}

function shown() {
  const [task, model, length, submission] = ["by-task", "by-model", "by-length", "by-submission"].map((id) => byId(id).value);
  const method = byId("by-method").value.toLowerCase();
  const found = entries.filter((entry) =>
    (!task || entry.task === task) && (!model || entry.model === model) && (!length || entry.length === Number(length)) && (!submission || entry.submission === submission) &&
    (!method || entry.method.toLowerCase().includes(method)) && (!byId("sound").checked || entry.ranked));
  const worth = (entry) => {
    if (chosen.sort === "place") return STANDING[entry.place] ?? Infinity;
    if (chosen.sort === "value") return entry.value === null ? Infinity : -entry.better * entry.value;
    return entry[chosen.sort];
  };
  const compared = (one, two) => (typeof one === "string" ? one.localeCompare(two) : one === two ? 0 : one - two);
  found.sort((one, two) => (chosen.down ? -1 : 1) * compared(worth(one), worth(two)) || two.better * (two.value - one.value) || one.at - two.at);
  return found;
}

const number = (value, scored) => (scored ? value.toFixed(2) : value.toFixed(3));
const valueOf = (entry) => (entry.value !== null ? number(entry.value, scored(entry)) : entry.refused ? "refused" : "no value");
const scored = (entry) => entry.metric === "accuracy" || (entry.better > 0 && !entry.metric.startsWith("resolution"));
const spoken = (entry) => `${valueOf(entry)}${entry.low === null ? "" : ` [${number(entry.low, scored(entry))}, ${number(entry.high, scored(entry))}]`}`;

function drawTable() {
  const found = shown();
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  chosen.page = Math.min(chosen.page, pages - 1);
  const rows = found.slice(chosen.page * PAGE, (chosen.page + 1) * PAGE).map((entry) => {
    const box = make("input", { type: "checkbox", "aria-label": `Compare ${entry.method} on ${entry.task} at ${entry.length}`, checked: chosen.ticked.includes(entry) });
    box.addEventListener("change", () => tick(entry, box.checked));
    const value = make("td", { class: entry.value === null ? "none" : undefined }, valueOf(entry));
    if (entry.low !== null) value.append(make("small", {}, spoken(entry).split(" ").slice(1).join(" ")));
    const length = make("td", {}, tokens(entry.length), make("small", {}, `${Number((entry.length / entry.trained).toPrecision(3))}x`));
    const metric = make("td", { class: "left" }, make("bdi", {}, entry.task), make("small", {}, entry.metric));
    const texted = (text) => make("td", { class: "left" }, make("bdi", {}, text));
    return make("tr", {}, make("td", {}, box), make("td", {}, placeOf(entry)), texted(entry.model), texted(entry.method), metric, length, value, make("td", {}, String(entry.n)), texted(entry.submission), make("td", { class: "left note" }, entry.note));
  });
  const heads = COLUMNS.map((name) => {
    const button = make("button", { type: "button", class: "sort", "data-column": name }, name);
    button.addEventListener("click", () => {
      chosen.down = chosen.sort === name && !chosen.down;
      chosen.sort = name;
      drawTable();
      byId("table").querySelector(`[data-column="${name}"]`).focus();
    });
    const sorted = chosen.sort === name ? (chosen.down ? "descending" : "ascending") : "none";
    return make("th", { scope: "col", "aria-sort": sorted, class: ["model", "method", "task", "submission", "note"].includes(name) ? "left" : undefined }, button);
  });
  const made = make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, ""), ...heads)), make("tbody", {}, ...rows));
  byId("table").replaceChildren(make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Entries" }, made));
  byId("count").textContent = `${tokens(found.length)} of ${tokens(entries.length)} entries`;
  byId("pages").textContent = pages > 1 ? `page ${chosen.page + 1} of ${pages}` : "";
  byId("before").disabled = chosen.page === 0;
  byId("after").disabled = chosen.page >= pages - 1;
}

function tick(entry, on) {
  chosen.ticked = on ? [...chosen.ticked, entry].slice(-2) : chosen.ticked.filter((each) => each !== entry);
  chosen.sample = 0;
  drawTable();
  drawPair();
}

const titled = (entry) => `${entry.method} of ${entry.submission}`;

/** Two entries: values, their difference, curves over length, samples. */
function drawPair() {
  const [one, two] = chosen.ticked;
  byId("pair-chart").hidden = !one;
  byId("sample-bar").hidden = !one;
  if (!one) {
    byId("compared").replaceChildren(make("p", { class: "quiet" }, "Tick two entries of the table."));
    byId("sample-pair").replaceChildren();
    byId("pair-said").textContent = "";
    return;
  }
  const lines = chosen.ticked.map((entry) => make("p", {}, make("strong", {}, titled(entry)), ` on ${entry.task} at ${tokens(entry.length)} tokens, ${entry.model}: ${spoken(entry)} ${entry.metric}, n ${entry.n}. ${entry.note}`));
  if (two) lines.push(make("p", { id: "verdict" }, verdict(one, two)));
  byId("compared").replaceChildren(...lines);
  drawCurves();
  drawSamples();
}

function verdict(one, two) {
  if (one.value === null || two.value === null) return "One of them has no value: there is nothing to compare.";
  if (one.metric !== two.metric) return "They have different metrics: there is nothing to compare.";
  const text = `${titled(one)} minus ${titled(two)}: ${number(one.value - two.value, scored(one))}.`;
  if (one.asked !== two.asked) return `${text} They were asked different questions, or under different protocols: read the difference with care.`;
  const places = [one, two].map((entry) => entry.place);
  if (places.includes("1st") && places.includes("tied")) return `${text} A paired test on the same questions does not tell them apart.`;
  if (places.includes("1st") && places.includes("behind")) return `${text} ${titled(places[0] === "1st" ? one : two)} is better by a paired test on the same questions.`;
  return `${text} They were asked the same questions; the paired test: lexbench compare ${one.folder} ${two.folder} --a method=${one.method} --b method=${two.method}`;
}

let rows = [];

/** Both entries over length: cells of the same submission, model, method, task and metric; of two metrics the first entry alone. */
function drawCurves() {
  const chart = byId("pair-chart");
  const alike = (entry) => entries.filter((each) => ["submission", "model", "method", "task", "metric"].every((name) => each[name] === entry[name]) && each.value !== null).sort((a, b) => a.length - b.length);
  const curves = chosen.ticked.filter((entry) => entry.metric === chosen.ticked[0].metric).map((entry) => [entry, alike(entry).filter((each, place, all) => !place || each.length !== all[place - 1].length)]);
  const every = curves.flatMap(([, found]) => found);
  const svg = blank(chart, 330);
  chart.dataset.name = "comparison";
  rows = [];
  if (!every.length) return;
  const box = { left: 62, right: widthOf(chart) - 14, top: 14, bottom: 280 };
  const lengths = texts(every.map((entry) => entry.length));
  const ends = every.flatMap((entry) => [entry.value, entry.low ?? entry.value, entry.high ?? entry.value]);
  const range = scored(every[0]) ? [-0.04, 1.04] : [Math.min(...ends), Math.max(...ends)];
  const y = scaled(range, box.bottom, box.top);
  const x = scaled([lengths[0] / 1.1, lengths.at(-1) * 1.1], box.left, box.right, true);
  valueAxis(svg, box, round(...range.map((end) => Math.max(end, scored(every[0]) ? 0 : -Infinity)), 6).map((value) => ({ at: y(value), text: numeral(value) })), every[0].metric);
  lengthAxis(svg, box, lengths.filter((_, place) => lengths.length < 9 || place % 2 === 0).map((length) => ({ at: x(length), text: tokens(length) })), "length (tokens)");
  curves.forEach(([entry, found], place) => {
    const points = found.map((each) => ({ x: x(each.length), y: y(each.value), low: each.low === null ? null : y(each.low), high: y(each.high ?? each.value) }));
    const alikeLooks = place && curves[0][0].look === entry.look;
    curve(svg, points, { ...data.shapes[entry.look], ...(alikeLooks ? { dash: "4px,3px", hollow: true } : {}) });
    rows.push(found.map((each, index) => {
      const text = `${titled(each)}\n${tokens(each.length)} tokens: ${spoken(each)}, n ${each.n}`;
      return { px: points[index].x, py: points[index].y, x: each.length, text, said: text, open: () => undefined };
    }));
  });
}

// Samples --------------------------------------------------------------------------------------------------------------

const loaded = new Map();
/** Called by the scripts in samples/, each of which holds the samples of one entry. */
globalThis.lexbenchSamples = (name, found) => loaded.set(name, found.samples);

/** An entry's samples; a script, because a page that is opened from a disk may fetch nothing. */
function samplesOf(entry) {
  if (entry.samples === null) return Promise.resolve([]);
  if (loaded.has(entry.samples)) return Promise.resolve(loaded.get(entry.samples));
  return new Promise((done, failed) => {
    const script = make("script", { src: `samples/${entry.samples}.js` });
    script.addEventListener("load", () => done(loaded.get(entry.samples) ?? []));
    script.addEventListener("error", () => failed(new Error("the site's folder samples/ lacks it")));
    document.head.append(script);
  });
}

async function drawSamples() {
  const ticked = chosen.ticked;
  const all = await Promise.all(ticked.map((entry) => samplesOf(entry).catch((error) => error)));
  if (ticked !== chosen.ticked) return;
  const first = Array.isArray(all[0]) ? all[0] : [];
  chosen.sample = Math.max(0, Math.min(first.length - 1, chosen.sample));
  const index = first[chosen.sample]?.index;
  byId("sample-place").textContent = first.length ? `sample ${chosen.sample + 1} of ${first.length}` : "";
  byId("previous").disabled = chosen.sample <= 0;
  byId("next").disabled = chosen.sample >= first.length - 1;
  byId("sample-pair").replaceChildren(...ticked.map((entry, place) => {
    const article = make("article", { class: "sample", "data-title": titled(entry) });
    const found = all[place];
    if (!Array.isArray(found)) article.append(make("p", {}, `No samples: ${found.message}.`));
    else article.append(...sampleOf(found.find((sample) => sample.index === index)));
    return article;
  }));
}

function sampleOf(sample) {
  if (!sample) return [make("p", {}, "It has no answer to this question.")];
  const scores = Object.entries(sample.scores ?? {}).map(([name, score]) => `${name} ${Number(score.toPrecision(4))}`);
  const said = [`sample ${sample.index}`, `${tokens(sample.tokens)} tokens`, ...scores, sample.nll ? `NLL ${sample.nll.mean} over ${sample.nll.targets} targets` : "", sample.failed ? `failed: ${sample.failed}` : ""];
  const text = (title, content) => [make("h3", {}, title), make("div", { class: "text-block", tabindex: 0, role: "region", "aria-label": title }, content)];
  return [
    make("p", {}, make("bdi", {}, said.filter(Boolean).join(" \u00b7 "))),
    ...(sample.expected ? text("Expected", sample.expected.join("\n")) : []),
    ...(sample.output === undefined ? [] : text("Answer", sample.output)),
    ...(sample.options ? text("NLL of each option", sample.options.map((nll, place) => `${place + 1}: ${nll}`).join("\n")) : []),
    ...(sample.prompt === undefined ? [] : text("Prompt", sample.prompt)),
  ];
}

/** Fold the settings of each method under it; a button shows them. */
function foldSettings() {
  for (const button of document.querySelectorAll(".matrix .fold")) {
    const row = button.closest("tr");
    const rows = [...row.parentElement.querySelectorAll("tr.setting")].filter((each) => each.dataset.group === row.dataset.group);
    const show = (open) => {
      button.setAttribute("aria-expanded", String(open));
      for (const each of rows) each.hidden = !open;
    };
    button.addEventListener("click", () => {
      show(button.getAttribute("aria-expanded") !== "true");
      markWide();
    });
    show(false);
  }
}

function start() {
  foldSettings();
  fill("by-task", "all tasks", texts(entries.map((entry) => entry.task)));
  fill("by-model", "all models", texts(entries.map((entry) => entry.model)));
  fill("by-length", "all lengths", texts(entries.map((entry) => entry.length)));
  fill("by-submission", "all", data.submissions);
  for (const id of ["by-task", "by-model", "by-length", "by-submission", "sound", "by-method"]) {
    byId(id).addEventListener("input", () => {
      chosen.page = 0;
      drawTable();
    });
  }
  const turn = (step) => {
    chosen.page += step;
    drawTable();
  };
  byId("before").addEventListener("click", () => turn(-1));
  byId("after").addEventListener("click", () => turn(1));
  const other = (step) => {
    chosen.sample += step;
    drawSamples();
  };
  byId("previous").addEventListener("click", () => other(-1));
  byId("next").addEventListener("click", () => other(1));
  walk(byId("pair-chart"), byId("pair-said"), () => rows);
  byId("theme").addEventListener("change", (event) => (document.documentElement.dataset.theme = event.target.value));
  addEventListener("resize", () => chosen.ticked.length && drawCurves());
  drawTable();
  markWide();
}

start();
