"use strict";
// What the page and the board share: elements and tables. Text enters by textContent alone: none of it is markup.

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

/** Say of each table that is wider than its place that it scrolls. */
function markWide() {
  for (const each of document.querySelectorAll(".scroll")) each.classList.toggle("wide", each.scrollWidth > each.clientWidth + 1);
}
addEventListener("resize", markWide);
