"use strict";
// What all charts share: plotly's settings in the colours of the page, and walking along their points by keyboard.

const QUIET = { displayModeBar: false, responsive: true, showTips: false };
const PAPER_WIDTH = 660; // CSS pixels between the margins of a printed page

let paper = false;
const fitToPaper = (printing) => (paper = printing);

/** Text for plotly, which reads some tags and entities: here they are text. */
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function layout(more) {
  const ink = colour("tone-ink");
  return {
    autosize: !paper,
    width: paper ? PAPER_WIDTH : undefined,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12.5, color: ink },
    margin: { l: 56, r: 14, t: 12, b: 52 },
    showlegend: false,
    hovermode: "closest",
    dragmode: false,
    hoverlabel: { bgcolor: colour("tone-raised"), bordercolor: colour("tone-quiet"), font: { color: ink, size: 12.5 }, align: "left" },
    ...more,
  };
}

function axis(more) {
  return {
    fixedrange: true,
    gridcolor: colour("tone-line"),
    linecolor: colour("tone-quiet"),
    tickcolor: colour("tone-line"),
    zeroline: false,
    automargin: true,
    ...more,
  };
}

/**
 * Arrow keys walk over a chart's points; what a point says is announced.
 *
 * points() gives rows of points: left and right move in a row, up and down to the nearest point of another one. A point
 * is {said, x, show(), open()}; show() marks it in the chart, open() reads its samples.
 */
function walk(chart, said, points) {
  let row = 0;
  let place = -1;
  const nearest = (list, x) => list.reduce((best, point, index) => (Math.abs(point.x - x) < Math.abs(list[best].x - x) ? index : best), 0);
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };

  chart.addEventListener("keydown", (event) => {
    const rows = points();
    if (!rows.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const here = rows[Math.min(row, rows.length - 1)];
    if (event.key === "Enter" && here[place]) {
      event.preventDefault();
      here[place].open();
    } else if (moves[event.key]) {
      event.preventDefault();
      const [down, right] = moves[event.key];
      const x = here[place]?.x;
      row = Math.max(0, Math.min(rows.length - 1, row + (x === undefined ? 0 : down)));
      const list = rows[row];
      if (x === undefined) place = event.key === "End" ? list.length - 1 : 0;
      else place = down ? nearest(list, x) : Math.max(0, Math.min(list.length - 1, place + right));
      list[place].show();
      said.textContent = list[place].said;
    }
  });
  chart.addEventListener("blur", () => {
    if (chart.data) Plotly.Fx.unhover(chart);
  });
}
