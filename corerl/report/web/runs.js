// From a cell to its runs: their scores, where they lie, how long they took, and their settings.

function openDialog(title, ...content) {
  const dialog = $("#dialog");
  const close = make("button", { class: "close", title: "close", "aria-label": "close", text: "×", on: () => dialog.close() });
  dialog.replaceChildren(make("header", {}, make("h3", { text: title }), close), ...content);
  if (!dialog.open) dialog.showModal();
  return dialog;
}

function grid(heads, rows, title) {
  const table = make("table", { class: "plain" }, make("thead", {}, make("tr", {}, ...heads.map((h) => make("th", { scope: "col", text: h })))));
  const cell = (c) => (c instanceof Node ? make("td", {}, c) : make("td", { text: c }));
  table.append(make("tbody", {}, ...rows.map((row) => make("tr", {}, make("th", { scope: "row", text: row[0] }), ...row.slice(1).map(cell)))));
  const frame = make("figure", { class: "table", "data-title": title }, make("div", { class: "scroll" }, table), make("div", { class: "notes" }));
  frame.prepend(make("figcaption", {}, title, copyButton(() => tableLatex(frame))));
  return frame;
}

/** Opens what stands behind one number. */
function showRuns(section, algorithm, task) {
  const runs = section.runs.filter((run) => run.algorithm === algorithm && run.task === task);
  const groups = [...new Set(runs.map((run) => run.group))].map((i) => data.groups[i]);
  const link = (group) => make("a", { href: group.href, text: group.name });
  const seeds = runs.map((run) => [`${run.seed}`, String(run.score), run.step.toLocaleString("en"), link(data.groups[run.group])]);
  const told = groups.map((g) => [g.name, g.state ?? "–", g.steps ?? "–", g.time ?? "–", g.rate ?? "–", g.compile ?? "–", g.machine ?? "–"]);
  const rest = section.runs.filter((run) => run.task === task && run.algorithm !== algorithm).map((run) => data.groups[run.group].settings);
  openDialog(
    `${algorithm} on ${task}`,
    grid(["seed", "score", "step", "run"], seeds, `Runs of ${algorithm} on ${task}`),
    ...(groups.some((g) => g.state) ? [grid(["run", "state", "steps", "time", "updates/s", "updates ran", "machine"], told, "Time")] : []),
    ...settings(groups, [...new Set(rest)]),
  );
}

/** The settings of these runs: first those in which other algorithms on the task differ, then all. */
function settings(groups, others) {
  const mine = [...new Set(groups.map((g) => g.settings))].filter((i) => i !== null).map((i) => data.settings[i]);
  if (!mine.length) return [make("p", { class: "note", text: "These scores are from a score file, which does not have the settings." })];
  const value = (flat, key) => (flat[key] === undefined ? "–" : JSON.stringify(flat[key]));
  const keys = [...new Set(mine.flatMap(Object.keys))].filter((key) => !["algo.name", "label", "task"].includes(key)).sort();
  const foreign = others.filter((i) => i !== null).map((i) => data.settings[i]);
  const differs = (key) => [...mine, ...foreign].some((flat) => key in flat && value(flat, key) !== value(mine[0], key));
  const row = (key) => [key, [...new Set(mine.map((flat) => value(flat, key)))].join(", "), [...new Set(foreign.filter((f) => key in f).map((f) => value(f, key)))].join(", ")];
  const told = keys.filter(differs).map(row);
  const all = make("details", {}, make("summary", { text: `All ${keys.length} settings` }), grid(["setting", "here"], keys.map((key) => row(key).slice(0, 2)), "Settings"));
  return [...(told.length ? [grid(["setting", "here", "other algorithms"], told, "Settings that differ from those of other algorithms on this task")] : []), all];
}

/** Makes the numbers of a table lead to their runs. */
function clickable(section, figure) {
  const heads = $$("thead th", figure).slice(1);
  for (const row of $$("tbody tr[data-task]", figure)) {
    [...row.cells].slice(1).forEach((cell, i) => {
      const algorithm = heads[i].dataset.algorithm;
      if (!algorithm || cell.dataset.value === undefined || !section.algorithms.includes(algorithm)) return;
      const open = () => showRuns(section, algorithm, row.dataset.task);
      cell.classList.add("leads");
      for (const [key, value] of [["tabindex", "0"], ["role", "button"], ["title", "show the runs"]]) cell.setAttribute(key, value);
      cell.addEventListener("click", open);
      cell.addEventListener("keydown", (event) => event.key === "Enter" && open());
    });
  }
}
