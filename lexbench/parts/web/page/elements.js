"use strict";
// What the page and the board share: elements, tables, colours, ranks. Text enters by textContent alone: none of it is markup.

const byId = (id) => document.getElementById(id);
const tokens = (length) => length.toLocaleString("en-US");
const several = (count, noun) => `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;

/** An element with attributes and children; children that are texts become text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== ""));
  return element;
}

function options(select, labels, place) {
  select.replaceChildren(...labels.map((label, value) => make("option", { value }, label)));
  select.value = place;
}

/** A table that can be read out: a head, and rows of a label and cells; notes stand below. */
function table(label, head, rows, notes = []) {
  const top = make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, ...[text].flat())));
  const body = rows.map(({ name, cells, kind }) => {
    return make("tr", { class: kind }, make("th", { scope: "row" }, make("bdi", {}, name)), ...cells);
  });
  const made = make("table", {}, make("thead", {}, top), make("tbody", {}, ...body));
  const list = notes.length ? [make("ol", { class: "notes" }, ...notes.map((note) => make("li", {}, note)))] : [];
  return [make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, made), ...list];
}

// Ranks ---------------------------------------------------------------------------------------------------------------

/**
 * The difference of two independent values and its 95 % interval, from theirs: recovered variances (MOVER, Zou and Donner
 * 2008). On the same questions it is too wide, never too narrow, where answers to them go together.
 */
function difference(one, other) {
  const value = one.value - other.value;
  const side = (up, down) => Math.hypot(up - one.value, other.value - down);
  if ([one.low, one.high, other.low, other.high].some((end) => end === null || end === undefined)) return { value, low: null, high: null };
  return { value, low: value - side(one.low, other.high), high: value + side(one.high, other.low) };
}

/** Whether two values differ by more than chance; two at their floor never do. */
function apart(one, other) {
  const { low, high } = difference(one, other);
  return low !== null && (low > 0 || high < 0) && !(one.floored && other.floored);
}

/** Each value's rank among all: 1 + how many are better by more than chance; equal ranks are ties. Without a better side null. */
function ranks(entries, better) {
  const worse = (one, other) => better * (one.value - other.value) < 0 && apart(one, other);
  return entries.map((entry) => (better && entry && entry.value !== null ? 1 + entries.filter((other) => other && other.value !== null && worse(entry, other)).length : null));
}
