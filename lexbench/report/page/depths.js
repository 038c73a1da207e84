"use strict";
// Scores by the needle's depth and the length: a panel a method.

const PANEL = 250; // least width of a panel, CSS pixels
const DEPTH_MOST = 12; // methods

let fields = [];

function drawDepths() {
  const shown = chosen.methods.filter((method) => metric().depths.some((each) => each.method === method)).slice(0, DEPTH_MOST);
  byId("depth-body").hidden = !shown.length;
  byId("depth-none").hidden = shown.length > 0;
  byId("depth-none").textContent = metric().depths.length
    ? "None of the chosen methods has samples with a depth."
    : `The samples of ${setting().label} have no depth, or ${metric().label} is no score.`;
  fields = [];
  if (!shown.length) return;
  const chart = byId("depth-chart");
  const width = paper ? PAPER_WIDTH : chart.clientWidth;
  const columns = Math.min(shown.length, Math.max(1, Math.floor(width / PANEL)));
  const rows = Math.ceil(shown.length / columns);
  const traces = [];
  const shared = { annotations: [], shapes: [], height: 50 + rows * 190, margin: { l: 44, r: 6, t: 26, b: 24 } };
  shown.forEach((method, place) => traces.push(panel(method, place, place % columns, Math.floor(place / columns), columns, rows, shared)));
  Plotly.react(chart, traces, layout(shared), QUIET);
  drawStrata(shown);
}

const share = (value) => value.toFixed(2);

function panel(method, place, column, row, columns, rows, shared) {
  const { lengths, trained, methods } = setting();
  const name = place ? place + 1 : "";
  const all = lengths.map((_, length) => at(metric().depths, method, length)?.strata);
  const count = all.find((strata) => strata).length;
  const width = 1 / columns;
  const height = 1 / rows;
  const gap = 34 / (190 * rows);
  const sides = { x: [column * width + (column ? 0.02 : 0), (column + 1) * width - 0.01], y: [1 - (row + 1) * height + gap, 1 - row * height - gap / 2] };
  shared[`xaxis${name}`] = axis({ domain: sides.x, anchor: `y${name}`, tickvals: lengths.map((_, index) => index), ticktext: lengths.map(multiple), showgrid: false, range: [-0.5, lengths.length - 0.5], automargin: false, tickfont: { size: 11 } });
  shared[`yaxis${name}`] = axis({ domain: sides.y, anchor: `x${name}`, tickvals: column ? [] : [-0.5, count / 2 - 0.5, count - 0.5], ticktext: ["0", "0.5", "1"], range: [count - 0.5, -0.5], showgrid: false, automargin: false, tickfont: { size: 11 } });
  shared.annotations.push({ text: plain(folded(methods[method])), x: sides.x[0], y: sides.y[1], xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 12.5 } });
  const inside = lengths.filter((length) => length <= trained).length - 0.5;
  if (inside > 0 && inside < lengths.length - 1) {
    shared.shapes.push({ type: "line", x0: inside, x1: inside, y0: -0.5, y1: count - 0.5, xref: `x${name}`, yref: `y${name}`, line: { color: colour("tone-ink"), width: 1.5, dash: "dash" } });
  }
  lengths.forEach((_, length) => {
    if (all[length] || !at(setting().cells, method, length)?.refused) return;
    shared.annotations.push({ text: "refused", x: length, y: (count - 1) / 2, xref: `x${name}`, yref: `y${name}`, textangle: -90, showarrow: false, font: { size: 11, color: colour("tone-quiet") } });
  });
  const strata = [...Array(count).keys()];
  const over = (what) => strata.map((stratum) => lengths.map((_, length) => what(all[length]?.[stratum], stratum, length)));
  const said = (found, stratum, length) => depthSaid(method, length, stratum, count, found);
  strata.forEach((stratum) => {
    fields.push(lengths.map((_, length) => ({
      x: length,
      said: said(all[length]?.[stratum], stratum, length),
      show: () => ring(name, length, stratum),
      open: () => openCell(method, length),
    })));
  });
  return {
    type: "heatmap", xaxis: `x${name}`, yaxis: `y${name}`, xgap: 2, ygap: 2, zmin: 0, zmax: 1, zsmooth: false, showscale: false, colorscale: "Cividis", hoverongaps: false,
    x: lengths.map((_, index) => index), y: strata, z: over((found) => (found ? found[1] : null)),
    text: over((found) => (found && found[1] !== null ? share(found[1]) : "")), texttemplate: "%{text}", textfont: { size: 10.5 },
    hoverinfo: "text", hovertext: over((...field) => plain(said(...field))), customdata: over((_, __, length) => [method, length]),
  };
}

function depthSaid(method, length, stratum, count, found) {
  const depth = `depth ${share(stratum / count)} to ${share((stratum + 1) / count)}`;
  const place = `${setting().methods[method]}, ${tokens(setting().lengths[length])} tokens, ${depth}`;
  if (!found || found[1] === null) return `${place}: ${at(setting().cells, method, length)?.refused ? "refused" : "no samples"}`;
  const [n, value, low, high] = found;
  return `${place}: ${share(value)}${low === null ? "" : ` [${share(low)}, ${share(high)}]`}, n ${n}`;
}

/** A ring around a field, where the keyboard is. */
function ring(name, length, stratum) {
  const chart = byId("depth-chart");
  const shapes = chart.layout.shapes.filter((shape) => shape.name !== "ring");
  shapes.push({ name: "ring", type: "rect", xref: `x${name}`, yref: `y${name}`, x0: length - 0.5, x1: length + 0.5, y0: stratum - 0.5, y1: stratum + 0.5, line: { color: colour("hue-1"), width: 3 } });
  Plotly.relayout(chart, { shapes });
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
  Plotly.newPlot(byId("depth-chart"), [], layout({}), QUIET);
  byId("depth-chart").on("plotly_click", ({ points }) => openCell(...points[0].customdata));
  let columns = 0;
  addEventListener("resize", () => {
    const now = Math.floor(byId("depth-chart").clientWidth / PANEL);
    if (now !== columns) drawDepths();
    columns = now;
  });
}
