// Tables: hide what is off, emphasise the rest, sort columns. Estimates stay as the report computed them.

const isShown = (node) => !node.hidden;

function updateTable(section, figure) {
  const heads = $$("thead th", figure).slice(1), rows = $$("tbody tr", figure), now = current(section);
  const only = heads.map((head) => head.dataset.algorithm).filter(Boolean);
  figure.hidden = only.length > 0 && !only.some((name) => isOn("algorithms", name));
  heads.forEach((head) => (head.hidden = !!head.dataset.algorithm && !isOn("algorithms", head.dataset.algorithm)));
  for (const row of rows) {
    const of = JSON.parse(row.dataset.algorithms ?? "[]");
    row.hidden = !(isOn("tasks", row.dataset.task) && of.every((name) => isOn("algorithms", name)));
    [...row.cells].slice(1).forEach((cell, i) => (cell.hidden = heads[i].hidden));
  }
  if (figure.dataset.name === "scores") {
    for (const row of rows) row.toggleAttribute("data-shared", section.shared.includes(row.dataset.task));
    rows.forEach((row) => emphasise(row, figure));
    const equal = rows.filter(isShown).every((row) => row.dataset.metric || equalSteps(shownCells(row)));
    $$(".notes p", figure).filter((note) => note.textContent === data.unequalRule).forEach((note) => (note.hidden = equal));
  }
  if (["scores", "improvement", "rliable"].includes(figure.dataset.name)) {
    const count = section.shared.length, hidden = section.shared.some((task) => !now.tasks.includes(task));
    note(figure, count && hidden, `Aggregates and probabilities are over all ${count} tasks, hidden ones included.`);
  }
  updateScroll($(".scroll", figure));
}

/** The best of a row and those that are level with it, if all rest on equal numbers of steps. */
function emphasise(row, figure) {
  const cells = [...row.cells].slice(1), known = cells.filter((c) => isShown(c) && c.dataset.value !== undefined);
  cells.forEach((cell) => cell.classList.remove("top"));
  const equal = row.dataset.metric
    ? $$("tbody tr[data-shared]", figure).every((other) => equalSteps(shownCells(other)))
    : equalSteps(known);
  if (known.length < 2 || !equal) return;
  const sign = row.dataset.metric === "optimality_gap" ? -1 : 1, value = (cell) => sign * Number(cell.dataset.value);
  const best = known.reduce((a, b) => (value(b) > value(a) ? b : a)), place = cells.indexOf(best);
  for (const cell of known) {
    const ties = (cell.dataset.ties ?? "").split(" ").filter(Boolean).map(Number);
    const level = row.dataset.metric ? value(cell) === value(best) : ties.includes(place);
    cell.classList.toggle("top", cell === best || level);
  }
}

const shownCells = (row) => [...row.cells].slice(1).filter((c) => isShown(c) && c.dataset.value !== undefined);

function alike(steps) {
  return data.unequal || (new Set(steps).size < 2 && !steps.some((text) => text.includes("-")));
}

const equalSteps = (cells) => alike(cells.map((cell) => cell.dataset.steps ?? ""));

/** Shows or hides the note about hidden tasks below a table. */
function note(figure, isTrue, text) {
  let line = $(".notes .live", figure);
  if (!line) $(".notes", figure).prepend((line = make("p", { class: "live" })));
  [line.hidden, line.textContent] = [!isTrue, text];
}

// Sorting: down, up, as it was. Aggregates stay below.

function sortable(figure) {
  const body = $("tbody", figure), original = [...body.rows];
  $$("thead th", figure).forEach((head, i) => {
    const button = make("button", { class: "sort", title: "sort", on: () => sort(i, head) });
    button.append(...head.childNodes);
    head.append(button);
  });
  function sort(i, head) {
    const next = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort ?? "none"];
    $$("thead th", figure).forEach((other) => (other.ariaSort = other === head ? next : "none"));
    const [rows, below] = [original.filter((r) => !r.dataset.metric), original.filter((r) => r.dataset.metric)];
    const key = (row) => (i === 0 ? row.cells[0].textContent : row.cells[i].dataset.value);
    const order = (a, b) => (i === 0 ? b.localeCompare(a) : Number(b) - Number(a));
    const missing = rows.filter((row) => key(row) === undefined), known = rows.filter((row) => key(row) !== undefined);
    if (next !== "none") known.sort((a, b) => (next === "ascending" ? -1 : 1) * order(key(a), key(b)));
    body.append(...(next === "none" ? rows : [...known, ...missing]), ...below);
  }
}

/** A table that is wider than its frame says so, and where it goes on. */
function updateScroll(frame) {
  const rest = frame.scrollWidth - frame.clientWidth - frame.scrollLeft;
  frame.classList.toggle("more", rest > 4);
  frame.classList.toggle("before", frame.scrollLeft > 4);
  const hint = frame.nextElementSibling;
  if (!hint?.classList.contains("goes-on")) return;
  const right = frame.getBoundingClientRect().right, heads = $$("thead th", frame).filter(isShown);
  const hidden = heads.filter((head) => head.getBoundingClientRect().right > right + 4).length;
  [hint.hidden, hint.textContent] = [rest <= 4, `${hidden} more column${hidden === 1 ? "" : "s"} →`];
}
