"use strict";
// Each method against the baseline on the same questions.

function drawPaired() {
  const { paired, better, label } = metric();
  byId("paired").hidden = !paired;
  if (!paired) return;
  const notes = [];
  const { methods } = setting();
  const wanted = byId("paired-all").checked ? metric().ranked : metric().ranked.filter((method) => chosen.methods.includes(method));
  const base = methods.indexOf(paired.baseline);
  const levels = entriesOf(base).map((entry) => (entry ? valueCell(entry, notes) : make("td")));
  const rows = wanted.filter((method) => method !== base).map((method) => ({
    name: nameOf(method),
    cells: setting().lengths.map((_, length) => pairedCell(at(paired.rows, method, length), better, notes)),
  }));
  rows.unshift({ name: `${nameOf(base)}: value`, kind: "baseline", cells: levels });
  const side = better > 0 ? "above zero is better" : better < 0 ? "below zero is better" : "neither side is better";
  byId("paired-table").replaceChildren(
    make("p", {}, `${label}: the method minus ${nameOf(base)}, over the same questions, in ${paired.unit}; ${side}.`),
    ...table(`Paired differences of ${label}`, ["method", ...heads()], rows, notes),
    ...paired.coverage.map((line) => make("p", { class: "quiet" }, line)),
    make("p", { class: "quiet" }, "Brackets hold 95 % intervals, pairs kept together. An asterisk: significant after correction for the number of methods and lengths of the task."),
  );
}

function pairedCell(row, better, notes) {
  if (!row) return make("td");
  const note = (text) => make("sup", {}, String((notes.includes(text) ? notes.indexOf(text) : notes.push(text) - 1) + 1));
  if (row.value === undefined) return make("td", { class: "none" }, row.text, row.why ? note(row.why) : "");
  const side = row.significant && better ? (Math.sign(row.value) === better ? "good" : "bad") : undefined;
  const about = [several(row.pairs, "pair"), `in ${several(row.clusters, "cluster")}`, row.p].filter(Boolean).join(", ");
  const cell = make("td", { class: side, title: about }, row.significant ? make("b", {}, `${row.text}*`) : row.text);
  const lost = ["failed", "truncated", "unpaired"].filter((word) => row[word]).map((word) => `${several(row[word], "pair")} ${word}`);
  if (lost.length) cell.append(note(lost.join(", ")));
  if (row.limit) cell.append(note(`cannot be told: ${row.limit}`));
  if (row.interval) cell.append(make("small", {}, row.interval));
  return cell;
}

const startPaired = () => byId("paired-all").addEventListener("change", drawPaired);
