"use strict";
// Scores by the needle's depth and the length: a panel a method.

const PANEL = 250; // least width of a panel, CSS pixels
const DEPTH_MOST = 12; // methods
const HIGH = 200; // of a panel, CSS pixels

let fields = [];

function drawDepths() {
  const shown = chosen.methods.filter((method) => metric().depths.some((each) => each.method === method)).slice(0, DEPTH_MOST);
  byId("depths").hidden = !shown.length;
  fields = [];
  if (!shown.length) return;
  const chart = byId("depth-chart");
  const width = widthOf(chart);
  const columns = Math.min(shown.length, Math.max(1, Math.floor(width / PANEL)));
  const svg = blank(chart, Math.ceil(shown.length / columns) * HIGH);
  chart.dataset.name = `${setting().label} depths`.replace(/[^A-Za-z0-9]+/g, "-");
  shown.forEach((method, place) => {
    const wide = width / columns;
    const [left, top] = [(place % columns) * wide, Math.floor(place / columns) * HIGH];
    panel(svg, method, { left: left + (place % columns ? 10 : 34), right: left + wide - 6, top: top + 24, bottom: top + HIGH - 26 }, place % columns === 0);
  });
  drawStrata(shown);
}

const share = (value) => value.toFixed(2);

/** Cividis (Nunez et al. 2018), which readers of all colour vision tell apart: colours of 0, 1/9, ..., 1. */
const CIVIDIS = [[0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115], [138, 134, 121], [166, 157, 117], [196, 181, 108], [228, 207, 91], [254, 232, 56]];
function shaded(value) {
  const place = Math.max(0, Math.min(0.9999, value)) * (CIVIDIS.length - 1);
  const [low, high] = [CIVIDIS[Math.floor(place)], CIVIDIS[Math.floor(place) + 1]];
  return `rgb(${low.map((part, index) => Math.round(part + (place % 1) * (high[index] - part))).join(", ")})`;
}

function panel(svg, method, { left, right, top, bottom }, first) {
  const { lengths, trained } = setting();
  const all = lengths.map((_, length) => at(metric().depths, method, length)?.strata);
  const count = all.find((strata) => strata).length;
  const [wide, high] = [(right - left) / lengths.length, (bottom - top) / count];
  svg.append(label(left, top - 8, nameOf(method), { class: "title" }));
  const rows = [...Array(count).keys()].map((stratum) => lengths.map((_, length) => {
    const found = all[length]?.[stratum];
    const box = { x: fixed(left + length * wide + 1), y: fixed(top + stratum * high + 1), width: fixed(wide - 2), height: fixed(high - 2) };
    const known = found && found[1] !== null;
    if (known) {
      svg.append(drawing("rect", { class: "field", ...box, fill: shaded(found[1]) }));
      if (high > 11) svg.append(label(left + (length + 0.5) * wide, top + (stratum + 0.5) * high + 4, share(found[1]), { class: found[1] < 0.55 ? "on-dark" : "on-light", "text-anchor": "middle" }));
    }
    const said = depthSaid(method, length, stratum, count, found);
    return { px: left + (length + 0.5) * wide, py: top + (stratum + 0.5) * high, near: Math.max(wide, high) / 2, box, x: length, text: said, said, open: () => openCell(method, length) };
  }));
  fields.push(...rows);
  lengths.forEach((_, length) => {
    if (all[length] || !at(setting().cells, method, length)?.refused) return;
    svg.append(label(0, 0, "refused", { class: "quiet", "text-anchor": "middle", transform: `translate(${fixed(left + (length + 0.5) * wide + 4)} ${fixed((top + bottom) / 2)}) rotate(-90)` }));
  });
  lengthAxis(svg, { left, right, bottom }, lengths.map((length, place) => ({ at: left + (place + 0.5) * wide, text: multiple(length) })).filter((_, place) => wide > 34 || place % 2 === 0), "");
  if (first) valueAxis(svg, { left, right: left, top, bottom }, [[0, "0"], [0.5, "0.5"], [1, "1"]].map(([depth, text]) => ({ at: top + depth * (bottom - top), text })), "");
  const inside = lengths.filter((length) => length <= trained).length;
  if (inside > 0 && inside < lengths.length) rule(svg, "trained", left + inside * wide, left + inside * wide, top, bottom);
}

function depthSaid(method, length, stratum, count, found) {
  const depth = `depth ${share(stratum / count)} to ${share((stratum + 1) / count)}`;
  const place = `${setting().methods[method]}, ${tokens(setting().lengths[length])} tokens, ${depth}`;
  if (!found || found[1] === null) return `${place}: ${at(setting().cells, method, length)?.refused ? "refused" : "no samples"}`;
  const [n, value, low, high] = found;
  return `${place}: ${share(value)}${low === null ? "" : ` [${share(low)}, ${share(high)}]`}, n ${n}`;
}

function drawStrata(shown) {
  const rows = shown.flatMap((method) => {
    const all = setting().lengths.map((_, length) => at(metric().depths, method, length)?.strata);
    const count = all.find((strata) => strata).length;
    return [...Array(count).keys()].map((stratum) => ({
      name: `${setting().methods[method]}, ${share(stratum / count)} to ${share((stratum + 1) / count)}`,
      cells: all.map((strata) => {
        const found = strata?.[stratum];
        if (!found || found[1] === null) return make("td", { class: "none" }, "");
        return make("td", {}, share(found[1]), make("small", {}, `${found[2] === null ? "" : `[${share(found[2])}, ${share(found[3])}] `}n ${found[0]}`));
      }),
    }));
  });
  byId("depth-table").replaceChildren(...table(`${metric().label} by method, depth and length`, ["method, depth", ...heads()], rows));
}

function startDepths() {
  walk(byId("depth-chart"), byId("depth-said"), () => fields);
  let width = 0;
  addEventListener("resize", () => {
    if (width !== widthOf(byId("depth-chart"))) drawDepths();
    width = widthOf(byId("depth-chart"));
  });
}
