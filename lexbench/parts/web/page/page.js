"use strict";
// The page's data, what is chosen, and how elements are made. Text enters by textContent alone: none of it is markup.

const data = JSON.parse(document.getElementById("data").textContent);
const BASELINE = "none";
const BEST = 4; // methods shown at first, besides the baseline and the reader's own

const chosen = {
  setting: 0,
  metric: 0,
  methods: [], // places in the setting's methods, in the order in which they were chosen
  acted: false, // the reader has done anything: before, the address stays as it is
  touched: false, // by the reader: then other tasks keep the choice, as far as they have the methods
};

const setting = () => data.settings[chosen.setting];
const metric = () => setting().metrics[chosen.metric];
const multiple = (length) => `${Number((length / setting().trained).toPrecision(3))}x`;

/** The entries of a list by their method and length: at(list, method, length) is one of them, or undefined. */
const indices = new WeakMap();
function at(list, method, length) {
  if (!indices.has(list)) indices.set(list, new Map(list.map((each) => [`${each.method} ${each.length}`, each])));
  return indices.get(list).get(`${method} ${length}`);
}

const heads = () => setting().lengths.map((length) => [tokens(length), make("small", {}, multiple(length))]);

/** The name of a method as it is read; the baseline's in words. */
const nameOf = (method) => (setting().methods[method] === BASELINE ? `unmodified (${BASELINE})` : setting().methods[method]);
const betterSide = { 1: " (\u2191 better)", "-1": " (\u2193 better)", 0: "" };

/** How a method is drawn: {hue, mark, dash, hollow, front, family}, computed from its name. */
const look = (method) => setting().looks[method];

// What is chosen ------------------------------------------------------------------------------------------------------

function best() {
  const { methods } = setting();
  const known = metric().ranked.filter((method) => metric().values.some((each) => each.method === method && each.value !== null));
  const own = known.filter((method) => look(method).front);
  const first = known.filter((method) => methods[method] !== BASELINE && !own.includes(method)).slice(0, BEST);
  const base = methods.indexOf(BASELINE);
  return [...(base < 0 ? [] : [base]), ...own.slice(0, BEST), ...first];
}

/** Choose a setting and a metric; methods that the reader chose stay, by their names. */
function choose(place, metricPlace) {
  const before = data.settings[chosen.setting].methods;
  const kept = chosen.touched ? chosen.methods.map((method) => before[method]) : [];
  chosen.setting = place;
  chosen.metric = metricPlace;
  chosen.methods = kept.map((name) => setting().methods.indexOf(name)).filter((method) => method >= 0);
  if (!chosen.methods.length && !(chosen.touched && kept.length === 0)) {
    chosen.touched = false;
    chosen.methods = best();
  }
  options(byId("metric"), setting().metrics.map((each) => each.label), metricPlace);
  byId("setting").value = place;
  byId("about").textContent = `${setting().protocol}. ${setting().about}.`;
  const sentence = data.sentences[setting().id] ?? "";
  byId("sentence").textContent = sentence;
  byId("sentence").hidden = !sentence;
}

function pick(methods) {
  chosen.touched = true;
  chosen.methods = methods;
  draw();
}

/** Draw all that depends on what is chosen. */
function draw() {
  for (const what of document.querySelectorAll(".what")) what.textContent = `${setting().label}, ${metric().label}`;
  drawCurves();
  drawDepths();
  drawPaired();
  for (const link of document.querySelectorAll("nav a")) link.hidden = byId(link.hash.slice(1))?.hidden ?? false;
  markWide();
  remember();
}

// The address ---------------------------------------------------------------------------------------------------------

/** Keep in the address what is chosen: it can be sent on, and outlives a reload. */
function remember() {
  if (!chosen.acted) return;
  const { methods, lengths } = setting();
  const kept = new URLSearchParams({ setting: setting().id, metric: metric().metric ?? "" });
  if (chosen.touched) for (const method of chosen.methods) kept.append("method", methods[method]);
  if (browser.picked) {
    kept.set("cell", methods[browser.method]);
    kept.set("length", lengths[browser.length]);
    kept.set("sample", browser.shown[browser.place]?.index ?? "");
  }
  location.replace(`#${kept}`);
}

/** Choose what the address says, as far as this page has it. */
function recall() {
  const kept = new URLSearchParams(location.hash.slice(1));
  const place = data.settings.findIndex((each) => each.id === kept.get("setting"));
  if (place < 0) return choose(0, 0);
  choose(place, Math.max(0, setting().metrics.findIndex((each) => each.metric === kept.get("metric"))));
  const { methods, lengths } = setting();
  const named = kept.getAll("method").map((name) => methods.indexOf(name)).filter((method) => method >= 0);
  if (named.length) Object.assign(chosen, { touched: true, methods: named });
  const cell = { method: methods.indexOf(kept.get("cell")), length: lengths.indexOf(Number(kept.get("length"))) };
  if (cell.method >= 0 && cell.length >= 0) browser.wanted = { ...cell, index: Number(kept.get("sample")) };
}

function start() {
  if (!data.settings.length) {
    byId("explore").hidden = true;
    return;
  }
  options(byId("setting"), data.settings.map((each) => each.label), 0);
  recall();
  for (const kind of ["change", "click", "keydown"]) {
    byId("explore").addEventListener(kind, () => (chosen.acted = true), true);
  }
  byId("setting").addEventListener("change", (event) => {
    choose(Number(event.target.value), 0);
    draw();
    drawBrowser();
  });
  byId("metric").addEventListener("change", (event) => {
    choose(chosen.setting, Number(event.target.value));
    draw();
    drawBrowser();
  });
  for (const link of document.querySelectorAll("a[data-setting]")) {
    link.addEventListener("click", () => {
      choose(data.settings.findIndex((each) => each.id === link.dataset.setting), 0);
      draw();
      drawBrowser();
    });
  }
  startCurves();
  startDepths();
  startPaired();
  startBrowser();
  draw();
  drawBrowser();
}

// Theme and paper -----------------------------------------------------------------------------------------------------

function startTheme() {
  const root = document.documentElement;
  const again = () => data.settings.length && (draw(), drawSample());
  const show = (theme) => {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    again();
  };
  byId("theme").addEventListener("change", (event) => show(event.target.value));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("beforeprint", () => (fitToPaper(true), show("light")));
  addEventListener("afterprint", () => (fitToPaper(false), show(byId("theme").value)));
}
