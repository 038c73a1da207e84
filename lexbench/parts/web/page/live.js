// Follows a running sweep: asks progress.json every few seconds and fills the section #progress, by text alone.
// Times are in seconds; names come from files and are never parsed as markup.
(() => {
  "use strict";
  const SOON = 2, LATER = 10;  // seconds between questions, while something is expected and else
  const PATIENCE = 60;  // seconds that an answer may take
  const MOST = 3;  // names in a row
  const section = document.getElementById("progress");
  if (!section) return;
  const shown = { state: section.dataset.state, cells: Number(section.dataset.cells) };
  const waiting = "waiting" in document.body.dataset;
  let timer, failures = 0, asking = false, pressed = false, renewing = false;

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const put = (element, text) => {
    if (element.textContent !== text) element.textContent = text;  // what is read aloud changes with its words only
    element.hidden = text === "";
  };

  const said = make("p", { role: "status" });
  const bar = make("progress", { "aria-label": "Cells finished" });
  const rest = make("p", { class: "quiet" });
  const rows = make("tbody");
  const heads = ["job", "cells", "now", "tokens per second", "so far", "to go"];
  const table = make("table", { class: "text" },
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))), rows);
  const jobs = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Jobs" }, table);
  const others = make("p", { class: "quiet" });
  const wrong = make("p");
  const renew = make("button", { type: "button" });
  bar.style.width = "100%";
  section.setAttribute("aria-labelledby", "progress-title");
  section.append(make("h2", { id: "progress-title" }, "Progress"), said, bar, rest, renew, jobs, others, wrong);
  for (const element of [said, bar, rest, renew, jobs, others, wrong]) element.hidden = true;
  renew.addEventListener("click", async () => {  // a large page takes its time: this one is read until it is there
    if (pressed) return;
    pressed = true;
    put(renew, "The page is being made");
    await fetch(`./?seen=${shown.state}`, { method: "HEAD" }).catch(() => undefined);
    renewing = true;
    ask();
  });

  const number = (value) => Math.round(value).toLocaleString("en");
  const several = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
  const duration = (seconds) => {
    if (seconds < 90) return `${Math.ceil(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
    return `${(seconds / 86400).toFixed(1)} days`;
  };
  const span = ({ low, high }) =>
    duration(low) === duration(high) ? `about ${duration(high)}` : `${duration(low)} to ${duration(high)}`;
  const named = (names) =>
    names.slice(0, MOST).join(", ") + (names.length > MOST ? ` and ${number(names.length - MOST)} more` : "");
  const at = (cell) => `${cell.task} ${cell.method} at ${number(cell.length)}: ${cell.samples} of ${several(cell.n, "sample")}`;

  const toGo = (job) => {
    if (job.state === "silent") return `nothing written for ${duration(job.silent)}`;
    return job.remaining ? span(job.remaining) : "known after the first cell";
  };
  const row = (job, running, folders) => make("tr", {},
    make("th", { scope: "row" }, `${folders ? `${job.folder}: ` : ""}${named(job.methods)} on ${named(job.tasks)}, ${job.model}`),
    make("td", {}, `${number(job.finished)} of ${number(job.planned)}${job.refused ? `, ${number(job.refused)} refused` : ""}`),
    make("td", {}, job.running.map((cell) => at(running.get(cell))).join("; ") || "between cells"),
    make("td", {}, job.tokens_per_second === null ? "" : number(job.tokens_per_second)),
    make("td", {}, duration(job.seconds)),
    make("td", {}, toGo(job)));

  const count = (now) => {
    if (now.cells + now.running.length === 0 && !now.planned) return "No cell yet: a run that has begun appears here.";
    const refused = now.refused ? `, ${number(now.refused)} refused` : "";
    if (now.planned === null) return `${several(now.finished, "cell")} finished${refused}`;
    return `${number(now.finished)} of ${several(now.planned, "cell")} finished${refused}`;
  };
  const outlook = (now, active, silent) => {
    if (silent.length && !active.length)
      return `Nothing was written for ${duration(Math.min(...silent.map((job) => job.silent)))}: the run has ended early, or is ` +
        "at a slow sample. Repeat the command to resume.";
    if (!active.length) return "";
    const time = now.remaining ? `${span(now.remaining)} to go` : "Time to go is known after the first cell";
    return `${time[0].toUpperCase()}${time.slice(1)}. Jobs of a sweep that have not begun are not counted.`;
  };

  const show = (now) => {
    const active = now.jobs.filter((job) => job.state === "running");
    const silent = now.jobs.filter((job) => job.state === "silent");
    const running = new Map(now.running.map((cell) => [cell.cell, cell]));
    const owned = new Set(now.jobs.flatMap((job) => job.running));
    const strays = now.running.filter((cell) => !owned.has(cell.cell));
    const fresh = shown.state !== undefined && now.state !== shown.state;
    const folders = new Set(now.jobs.map((job) => job.folder)).size > 1;
    const left = active.length + silent.length;
    if (left || strays.length || fresh || now.cells === 0 || waiting) section.hidden = false;
    put(said, count(now));
    bar.hidden = !now.planned;
    bar.max = now.planned || 1;
    bar.value = now.finished + now.running.filter((cell) => owned.has(cell.cell))
      .reduce((sum, cell) => sum + Math.min(1, cell.samples / cell.n), 0);
    put(rest, outlook(now, active, silent));
    rows.replaceChildren(...[...active, ...silent].map((job) => row(job, running, folders)));
    jobs.hidden = left === 0;
    const done = now.jobs.filter((job) => job.state === "finished").length;
    put(others, [
      ...(left && done ? [`${several(done, "job")} finished.`] : []),
      ...strays.map((cell) => `${at(cell)}, last written ${duration(cell.silent)} ago.`),
    ].join(" "));
    put(wrong, now.problems.length ? `Not readable: ${named(now.problems)}` : "");
    const more = now.cells - shown.cells;
    if (!pressed) put(renew, fresh ? (more > 0 ? `Show ${several(more, "new cell")}` : "Show what has changed") : "");
    return active.length + strays.length > 0 || now.cells === 0;
  };

  const ask = async () => {
    if (asking || document.hidden) return;
    asking = true;
    clearTimeout(timer);
    let soon = false;
    try {
      const answer = await fetch("progress.json", { cache: "no-store", signal: AbortSignal.timeout(1000 * PATIENCE) });
      if (!answer.ok) throw new Error(answer.statusText);
      const now = await answer.json();
      failures = 0;
      if ((waiting || renewing) && !now.making) return location.reload();  // the address keeps its hash
      soon = show(now);
    } catch (error) {
      failures += 1;
      pressed = renewing = false;
      if (failures > 1) {
        section.hidden = false;
        put(said, "lexbench view does not answer: it has ended. What stands below stays as it is.");
      }
    } finally {
      asking = false;
    }
    timer = setTimeout(ask, 1000 * (waiting || renewing ? 1 : soon ? SOON : LATER));
  };
  document.addEventListener("visibilitychange", ask);
  ask();
})();
