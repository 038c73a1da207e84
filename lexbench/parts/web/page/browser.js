"use strict";
// Samples of one cell: read from the page, where they are compressed, or from the server.

const KEPT = 8; // cells whose samples stay unpacked
const unpacked = new Map();
const browser = {
  method: 0,
  length: 0,
  samples: [], // of the cell
  shown: [], // those that pass the filter
  place: 0, // in them
  asked: 0, // samples that the cell has, here or not
  picked: false, // by the reader
  wanted: null, // method, length and index of a sample that the address names
};

/** A cell's samples: {cell, samples}; null where the page has none of them. */
async function samplesOf(id) {
  if (!unpacked.has(id)) {
    unpacked.set(id, await (document.body.hasAttribute("data-served") ? fetched(id) : inflated(id)));
    if (unpacked.size > KEPT) unpacked.delete(unpacked.keys().next().value);
  }
  return unpacked.get(id);
}

async function fetched(id) {
  const answer = await fetch(`samples/${id}.json`);
  if (!answer.ok) throw new Error(`the server has no samples of this cell (${answer.status})`);
  return answer.json();
}

async function inflated(id) {
  if (document.readyState === "loading") await new Promise((parsed) => addEventListener("DOMContentLoaded", parsed));
  const packed = byId(`samples-${id}`);
  if (!packed) return null;
  const bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

/** Choose the cell of a method and a length, as a click on its point does. */
async function openCell(method, length) {
  byId("sample-method").value = method;
  byId("sample-length").value = length;
  byId("sample-filter").value = "all";
  byId("samples").scrollIntoView();
  byId("sample").focus({ preventScroll: true });
  await pickCell();
}

function pickCell() {
  browser.picked = true;
  return loadCell();
}

/** The choices of a setting; at first the best method at its longest length, or what the address names. */
function drawBrowser() {
  const { methods, lengths, cells } = setting();
  const first = chosen.methods.find((method) => methods[method] !== BASELINE) ?? 0;
  const longest = Math.max(0, ...cells.filter((cell) => cell.method === first && cell.samples).map((cell) => cell.length));
  const { method, length, index } = browser.wanted ?? { method: first, length: longest };
  browser.picked = browser.wanted !== null;
  byId("sample-filter").value = "all";
  for (const option of byId("sample-filter").options) option.disabled = ["right", "wrong"].includes(option.value) && !metric().scored;
  browser.wanted = null;
  options(byId("sample-method"), methods, method);
  byId("sample-beside").replaceChildren(make("option", { value: "" }, "no other"), ...methods.map((name, value) => make("option", { value }, name)));
  options(byId("sample-length"), lengths.map((each) => `${tokens(each)} (${multiple(each)})`), length);
  return loadCell(index);
}

async function loadCell(index) {
  browser.method = Number(byId("sample-method").value);
  browser.length = Number(byId("sample-length").value);
  const cell = at(setting().cells, browser.method, browser.length);
  byId("sample").setAttribute("aria-busy", "true");
  let samples = [];
  let missing = !cell ? "This cell was not measured." : cell.refused ? `Refused: ${cell.refused}` : "";
  if (!missing) {
    try {
      samples = (await samplesOf(cell.id))?.samples ?? [];
      missing = samples.length ? "" : "The page holds no samples of this cell.";
    } catch (error) {
      missing = `The samples cannot be read: ${error.message}.`;
    }
  }
  if (cell !== at(setting().cells, browser.method, browser.length)) return; // another cell by now
  Object.assign(browser, { samples, missing, asked: cell?.samples ?? 0 });
  byId("sample").setAttribute("aria-busy", "false");
  sift(index);
}

/** Whether a sample is right by the chosen metric: a score of 1; null where there is no score. */
function right(sample) {
  if (sample.failed !== undefined) return metric().scored ? false : null;
  const score = metric().scored ? sample.scores?.[metric().metric] : undefined;
  return score === undefined ? null : score >= 1;
}

function sift(index) {
  const wanted = byId("sample-filter").value;
  const keeps = { all: () => true, right: (sample) => right(sample) === true, wrong: (sample) => right(sample) === false, failed: (sample) => sample.failed !== undefined };
  browser.shown = browser.samples.filter(keeps[wanted]);
  browser.place = Math.max(0, browser.shown.findIndex((sample) => sample.index === index));
  drawSample();
  remember();
}

function turn(step) {
  browser.place = Math.max(0, Math.min(browser.shown.length - 1, browser.place + step));
  browser.picked = true;
  drawSample();
  remember();
}

function drawSample() {
  const { shown, samples, place, asked } = browser;
  const sample = shown[place];
  const part = samples.length < asked ? `, of ${asked.toLocaleString("en-US")} measured` : "";
  const kind = byId("sample-filter").value;
  byId("sample-place").textContent = sample ? `${place + 1} of ${shown.length}${kind === "all" ? "" : ` ${kind}`}${part}` : "";
  byId("previous").disabled = place <= 0;
  byId("next").disabled = place >= shown.length - 1;
  if (!sample) {
    byId("sample").replaceChildren(make("p", {}, browser.missing || `No sample of this cell is ${kind}.`));
    drawBeside(null);
    return;
  }
  byId("sample").replaceChildren(...shownSample(sample));
  settled(byId("sample"), sample);
  drawBeside(sample);
}

const shownSample = (sample) => [...outcome(sample), ...asking(sample), ...answering(sample), ...likelihoods(sample), ...more(sample)];

/** What needs a place on the page: charts, and texts scrolled to what is marked. */
function settled(article, sample) {
  for (const block of article.querySelectorAll(".text-block")) {
    const mark = block.querySelector("mark");
    if (mark) block.scrollTop = mark.offsetTop - block.offsetTop - block.clientHeight / 3;
  }
  const chart = article.querySelector(".sample-chart");
  if (chart) drawLosses(chart, sample);
}

/** Another method's answer to the same question, in the same form. */
async function drawBeside(sample) {
  const other = Number(byId("sample-beside").value);
  const article = byId("beside-sample");
  article.hidden = !sample || other < 0 || byId("sample-beside").value === "";
  byId("sample-pair").classList.toggle("paired", !article.hidden);
  byId("sample").dataset.title = article.hidden ? "" : setting().methods[browser.method];
  if (article.hidden) return;
  article.dataset.title = setting().methods[other];
  const cell = at(setting().cells, other, browser.length);
  let found;
  let missing = !cell ? "This cell was not measured." : cell.refused ? `Refused: ${cell.refused}` : "";
  if (!missing) {
    try {
      found = (await samplesOf(cell.id))?.samples.find((each) => each.index === sample.index);
      missing = found ? "" : "The page does not hold its answer to this question.";
    } catch (error) {
      missing = `The samples cannot be read: ${error.message}.`;
    }
  }
  if (other !== Number(byId("sample-beside").value) || sample !== browser.shown[browser.place]) return; // another choice by now
  article.replaceChildren(...(found ? shownSample(found) : [make("p", {}, missing)]));
  if (found) settled(article, found);
}

function outcome(sample) {
  const verdict = right(sample);
  const word = sample.failed !== undefined ? "Failed" : verdict === null ? "" : verdict ? "Right" : "Wrong";
  const tone = verdict === true ? "right" : verdict === false || sample.failed !== undefined ? "wrong" : "";
  const facts = [
    `sample ${sample.index}`,
    `${tokens(sample.tokens)} tokens`,
    sample.depth !== undefined && `depth ${sample.depth.toFixed(2)}`,
    ...Object.entries(sample.scores ?? {}).map(([name, score]) => `${name} ${typeof score === "number" ? Number(score.toPrecision(4)) : score}`),
    `cluster ${sample.cluster}`,
    ...(sample.parts ?? []),
    sample.truncated && "truncated",
    sample.hit_room && "wrote until its room ended",
  ].filter(Boolean);
  const line = make("p", {}, word ? make("span", { class: `outcome ${tone}` }, `${word} `) : "", make("bdi", {}, facts.join(" \u00b7 ")));
  return sample.failed === undefined ? [line] : [line, make("p", {}, make("bdi", {}, sample.failed))];
}

function asking(sample) {
  const parts = [];
  if (sample.expected) parts.push(make("h3", {}, "Expected"), block(sample.expected.join("\n"), []));
  parts.push(make("h3", {}, "Prompt"));
  if (sample.prompt === undefined) parts.push(make("p", { class: "quiet" }, "Not kept: the version that measured this run kept no prompts."));
  else parts.push(block(sample.prompt, sample.expected ?? []));
  return parts;
}

function answering(sample) {
  const parts = [];
  if (sample.output !== undefined) parts.push(make("h3", {}, "Answer"), block(sample.output, sample.expected ?? []));
  else if (sample.options) {
    const chosenOption = sample.options.indexOf(Math.min(...sample.options));
    const wanted = Number(sample.facts?.expected_option);
    const rows = sample.options.map((nll, option) => ({
      name: `option ${option + 1}`,
      cells: [make("td", {}, nll.toFixed(3)), make("td", {}, [option === chosenOption && "chosen", option === wanted && "expected"].filter(Boolean).join(", "))],
    }));
    parts.push(make("h3", {}, "Answer: the likeliest option"), ...table("NLL of each option", ["option", "NLL (nats)", ""], rows));
  }
  return parts;
}

function likelihoods(sample) {
  const { nll, marks } = sample;
  if (!nll && !marks) return [];
  const title = nll ? "NLL along the targets" : "Accuracy along the scored positions";
  const said = nll
    ? `${several(nll.targets, "target")}: mean ${nll.mean} nats, median ${nll.median}, largest ${nll.largest}.` + (nll.targets > nll.curve.length ? ` Each point is a mean over ${Math.floor(nll.targets / nll.curve.length)} or so.` : "")
    : "Share right, 1 all; each point is a mean over equal stretches.";
  const values = nll ? nll.curve : marks;
  const numbers = make("details", {}, make("summary", {}, "Numbers"), make("p", { class: "text-block" }, values.join(", ")));
  return [make("h3", {}, title), make("p", { class: "quiet" }, said), make("div", { class: "sample-chart chart short", role: "img", "aria-label": `${title}: ${said}` }), numbers];
}

function drawLosses(chart, sample) {
  const values = sample.nll?.curve ?? sample.marks;
  const width = widthOf(chart);
  const box = { left: 48, right: width - 14, top: 8, bottom: 132 };
  const svg = blank(chart, 160);
  const top = Math.max(...values, 0.01);
  const y = scaled([0, top], box.bottom, box.top);
  const x = (place) => box.left + ((box.right - box.left) * place) / values.length;
  valueAxis(svg, box, round(0, top, 3).map((value) => ({ at: y(value), text: numeral(value) })), sample.nll ? "nats" : "right");
  lengthAxis(svg, box, [{ at: box.left + 10, text: "first" }, { at: box.right - 10, text: "last" }], "");
  const steps = values.map((value, place) => `${place ? "L" : "M"}${fixed(x(place))} ${fixed(y(value))}H${fixed(x(place + 1))}`);
  svg.append(drawing("g", { class: "curve hue-3" }, drawing("path", { class: "line", d: steps.join(""), "stroke-width": 1.5 })));
}

function more(sample) {
  const facts = Object.entries(sample.facts ?? {});
  if (!facts.length) return [];
  const list = make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, make("bdi", {}, name)), make("dd", {}, make("bdi", {}, value))]));
  return [make("details", {}, make("summary", {}, "More facts"), list)];
}

/** A text as it is, with what is expected marked, and what was left out told apart. */
function block(text, expected) {
  const marks = expected.filter(Boolean).sort((one, two) => two.length - one.length).map((each) => each.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const gap = "\\[\\.\\.\\. \\d+ characters \\.\\.\\.\\]";
  const found = new RegExp([...marks, gap].map((each) => `(?:${each})`).join("|"), "g");
  const made = make("div", { class: "text-block", tabindex: 0, role: "region", "aria-label": "Text" });
  let from = 0;
  for (const piece of text.matchAll(found)) {
    made.append(text.slice(from, piece.index));
    made.append(expected.includes(piece[0]) ? make("mark", {}, piece[0]) : make("span", { class: "gap" }, piece[0]));
    from = piece.index + piece[0].length;
  }
  made.append(text.slice(from));
  return made;
}

function startBrowser() {
  byId("sample-method").addEventListener("change", pickCell);
  byId("sample-length").addEventListener("change", pickCell);
  byId("sample-beside").addEventListener("change", () => drawBeside(browser.shown[browser.place]));
  byId("sample-filter").addEventListener("change", () => sift());
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  byId("sample").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    turn(step);
  });
}

// All that the page shows stands above this script, samples below it: curves need not wait for them.
start();
startTheme();
