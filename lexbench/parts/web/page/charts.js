"use strict";
// Charts as SVG that the page and the board share. Colours are classes, so a change of theme needs no new drawing.

const PAPER_WIDTH = 660; // CSS pixels between the margins of a printed page
const NEAR = 28; // CSS pixels between the pointer and the point that it shows
const PATHS = { // of the marks, around 0
  circle: "M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0Z", square: "M-3.6-3.6H3.6V3.6H-3.6Z", "triangle-up": "M-4.4 3.4H4.4L0-4.4Z",
  diamond: "M0-5L5 0L0 5L-5 0Z", "triangle-down": "M-4.4-3.4H4.4L0 4.4Z",
  cross: "M-1.5-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z", x: "M-4-2L-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0Z",
  star: "M0-5L1.4-1.6L5-1.5L2.2.7L3.1 4.2L0 2.2L-3.1 4.2L-2.2.7L-5-1.5L-1.4-1.6Z", pentagon: "M0-4.6L4.4-1.4L2.7 3.7H-2.7L-4.4-1.4Z",
  "triangle-left": "M3.4-4.4V4.4L-4.4 0Z", "triangle-right": "M-3.4-4.4V4.4L4.4 0Z",
};

let paper = false;
const fitToPaper = (printing) => (paper = printing);
const widthOf = (chart) => (paper ? PAPER_WIDTH : Math.max(chart.clientWidth, 220));
const fixed = (place) => Number(place.toFixed(1));
const numeral = (value) => String(Number(value.toPrecision(3)));

function drawing(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** An empty picture in place of the chart's old one. */
function blank(chart, height) {
  const width = widthOf(chart);
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": true });
  chart.querySelector("svg")?.remove();
  chart.prepend(svg);
  hide(chart);
  return svg;
}

const label = (x, y, text, more = {}) => drawing("text", { x: fixed(x), y: fixed(y), ...more }, text);

/** From values on an axis to pixels; a logarithmic one takes values above 0. */
function scaled(range, from, to, log = false) {
  const place = log ? Math.log : (value) => value;
  const [low, high] = range.map(place);
  return (value) => from + ((place(value) - low) / (high - low || 1)) * (to - from);
}

/** Grid lines and labels of a value axis: ticks are {at, text}, in pixels. */
function valueAxis(svg, { left, right, top, bottom }, ticks, title) {
  for (const { at, text } of ticks) {
    svg.append(drawing("line", { class: "grid", x1: left, x2: right, y1: fixed(at), y2: fixed(at) }));
    svg.append(label(left - 7, at + 4, text, { class: "ytick", "text-anchor": "end" }));
  }
  if (title) svg.append(label(0, 0, title, { class: "title", "text-anchor": "middle", transform: `translate(${fixed(left - Math.min(49, left - 13))} ${fixed((top + bottom) / 2)}) rotate(-90)` }));
}

/** The line, marks and labels of a length axis. */
function lengthAxis(svg, { left, right, bottom }, ticks, title) {
  svg.append(drawing("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  for (const { at, text } of ticks) {
    svg.append(drawing("line", { class: "axis", x1: fixed(at), x2: fixed(at), y1: bottom, y2: bottom + 4 }));
    svg.append(drawing("g", { class: "xtick" }, label(at, bottom + 17, text, { "text-anchor": "middle" })));
  }
  if (title) svg.append(label((left + right) / 2, bottom + 38, title, { class: "title", "text-anchor": "middle" }));
}

/** Round numbers between two ends, about so many. */
function round(low, top, count) {
  if (!(top > low)) return [low];
  const size = 10 ** Math.floor(Math.log10((top - low) / count));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * size).find((each) => (top - low) / each <= count + 1);
  const found = [];
  for (let place = Math.ceil(low / step); place * step <= top; place += 1) found.push(Number((place * step).toPrecision(12)));
  return found;
}

/** Round numbers of a logarithmic axis: 1, 2, 5 in each decade, or more where that would be too few. */
function roundLog(low, top) {
  const found = [];
  for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(top); decade += 1) found.push(...[1, 2, 5].map((each) => Number((each * 10 ** decade).toPrecision(3))));
  const inside = found.filter((value) => value >= low && value <= top);
  return inside.length > 2 ? inside : round(low, top, 5);
}

/** One line with its intervals and marks. Points are {x, y, low, high, hollow}, in pixels; y null breaks the line. */
function curve(svg, points, { hue, mark, dash, hollow, front }) {
  const group = drawing("g", { class: `curve hue-${hue}${front ? " front" : ""}` });
  const shown = points.map((point) => (point.y === null ? "" : `${fixed(point.x)} ${fixed(point.y)}`));
  const path = shown.map((place, index) => (place ? (index && shown[index - 1] ? "L" : "M") + place : "")).join("");
  const width = front ? 3.5 : hue ? 2 : 2.5;
  for (const { x, y, low, high } of points) {
    if (y !== null && low !== null) group.append(drawing("line", { class: "error", x1: fixed(x), x2: fixed(x), y1: fixed(low), y2: fixed(high) }));
  }
  group.append(drawing("path", { class: "line", d: path || "M0 0", "stroke-width": width, "stroke-dasharray": dash === "solid" ? undefined : dash.replaceAll("px", "") }));
  for (const { x, y, hollow: open = hollow } of points) {
    if (y !== null) group.append(drawing("path", { class: `point${open ? " hollow" : ""}`, d: PATHS[mark], transform: `translate(${fixed(x)} ${fixed(y)})${front ? " scale(1.4)" : ""}` }));
  }
  svg.append(group);
}

function swatch(shown) {
  const picture = drawing("svg", { viewBox: "-15 -6 30 12", "aria-hidden": "true" });
  if (shown) curve(picture, [{ x: -15, y: 0, low: null }, { x: 15, y: 0, low: null }], { ...shown, mark: "none" });
  if (shown) picture.firstChild.append(drawing("path", { class: `point${shown.hollow ? " hollow" : ""}`, d: PATHS[shown.mark] }));
  return picture;
}

/** A horizontal or vertical line over a panel. */
const rule = (svg, name, x1, x2, y1, y2) => svg.append(drawing("line", { class: name, x1: fixed(x1), x2: fixed(x2), y1: fixed(y1), y2: fixed(y2) }));

// Points ---------------------------------------------------------------------------------------------------------------

/**
 * Show a chart's points to pointer and keyboard; rows() gives rows of points: left and right move in a row, up and down to
 * the nearest point of another one. A point is {px, py, x, text, said, open()}: its place in pixels, its place along the row,
 * what is shown, what is announced; open() reads its samples. more() gives further points, for the pointer alone.
 */
function walk(chart, said, rows, more = () => []) {
  let row = 0;
  let place = -1;
  const tip = make("div", { class: "tip", hidden: true });
  chart.append(tip);
  const nearest = (list, x) => list.reduce((best, point, index) => (Math.abs(point.x - x) < Math.abs(list[best].x - x) ? index : best), 0);
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };

  chart.addEventListener("keydown", (event) => {
    const every = rows();
    if (!every.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const here = every[Math.min(row, every.length - 1)];
    if (event.key === "Enter" && here[place]) {
      event.preventDefault();
      here[place].open();
    } else if (moves[event.key]) {
      event.preventDefault();
      const [down, right] = moves[event.key];
      const x = here[place]?.x;
      row = Math.max(0, Math.min(every.length - 1, row + (x === undefined ? 0 : down)));
      const list = every[row];
      if (x === undefined) place = event.key === "End" ? list.length - 1 : 0;
      else place = down ? nearest(list, x) : Math.max(0, Math.min(list.length - 1, place + right));
      show(chart, list[place]);
      said.textContent = list[place].said;
    }
  });
  const under = (event) => {
    const { left, top } = chart.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const found = [...rows(), ...more()].flat().filter((point) => point.py !== null).map((point) => [Math.hypot(point.px - x, point.py - y), point]);
    const [distance, point] = found.reduce((best, each) => (each[0] < best[0] ? each : best), [Infinity, null]);
    return distance <= (point?.near ?? NEAR) ? point : null;
  };
  chart.addEventListener("pointermove", (event) => {
    const point = under(event);
    chart.classList.toggle("over", Boolean(point));
    if (point) show(chart, point);
    else hide(chart);
  });
  chart.addEventListener("click", (event) => under(event)?.open());
  chart.addEventListener("pointerleave", () => hide(chart));
  chart.addEventListener("blur", () => hide(chart));
  exported(chart);
}

function show(chart, point) {
  hide(chart);
  if (point.py === null) return;
  const ring = point.box ? drawing("rect", { class: "ring", ...point.box }) : drawing("circle", { class: "ring", cx: fixed(point.px), cy: fixed(point.py), r: 8 });
  chart.querySelector("svg").append(ring);
  const tip = chart.querySelector(".tip");
  tip.textContent = point.text;
  tip.hidden = false;
  const width = widthOf(chart);
  tip.style.left = `${Math.max(0, Math.min(point.px + 12, width - tip.offsetWidth - 2))}px`;
  tip.style.top = `${point.py > tip.offsetHeight + 14 ? point.py - tip.offsetHeight - 12 : point.py + 14}px`;
}

function hide(chart) {
  chart.querySelector(".ring")?.remove();
  const tip = chart.querySelector(".tip");
  if (tip) tip.hidden = true;
}

// Export ---------------------------------------------------------------------------------------------------------------

const KEPT_STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "font-family", "font-size"];

/** Buttons below a chart that save it as it is drawn. */
function exported(chart) {
  const button = (text, save) => {
    const made = make("button", { type: "button", title: `Save this chart as ${text}` }, text);
    made.addEventListener("click", save);
    return made;
  };
  chart.after(make("div", { class: "buttons export" }, button("SVG", () => saved(chart, "svg")), button("PNG", () => saved(chart, "png"))));
}

/** The chart as a document of its own, in the colours that are shown. */
function alone(chart) {
  const svg = chart.querySelector("svg");
  const copy = svg.cloneNode(true);
  const originals = [...svg.querySelectorAll("*")];
  [...copy.querySelectorAll("*")].forEach((element, place) => {
    const style = getComputedStyle(originals[place]);
    for (const name of KEPT_STYLES) if (style[name]) element.setAttribute(name, style.getPropertyValue(name));
    element.removeAttribute("class");
  });
  copy.querySelectorAll("text").forEach((text) => text.setAttribute("stroke", "none"));
  copy.prepend(drawing("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor }));
  copy.removeAttribute("aria-hidden");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

async function saved(chart, kind) {
  hide(chart);
  const text = alone(chart);
  let file = new Blob([text], { type: "image/svg+xml" });
  if (kind === "png") {
    const picture = new Image();
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await picture.decode();
    const canvas = make("canvas", { width: 2 * picture.width, height: 2 * picture.height });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    file = await new Promise((made) => canvas.toBlob(made));
  }
  const link = make("a", { href: URL.createObjectURL(file), download: `${chart.dataset.name || chart.id}.${kind}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
