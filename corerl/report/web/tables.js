// Tables: what is off disappears, the rest is emphasised and estimated anew, columns sort, all copies as LaTeX.

const isShown = (node) => !node.hidden;
const written = new WeakMap(); // a cell as the report wrote it

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
    updateAggregates(section, figure, heads, now);
    rows.forEach((row) => emphasise(row, figure));
    const equal = rows.filter(isShown).every((row) => row.dataset.metric || equalSteps(shownCells(row)));
    $$(".notes p", figure).filter((note) => note.textContent === data.unequalRule).forEach((note) => (note.hidden = equal));
  }
  if (figure.dataset.name === "improvement") updateImprovement(section, figure, now);
  updateScroll($(".scroll", figure));
}

/** The best of a row and those that are level with it, if all rest on equal numbers of steps. */
function emphasise(row, figure) {
  const cells = [...row.cells].slice(1), known = cells.filter((c) => isShown(c) && c.dataset.value !== undefined);
  cells.forEach((cell) => cell.classList.remove("top"));
  const equal = row.dataset.metric
    ? $$("tbody tr[data-shared]", figure).filter(isShown).every((other) => equalSteps(shownCells(other)))
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

/** Whether two algorithms ran equally many steps on each of these tasks. */
const comparable = (section, x, y, tasks) => tasks.every((task) => alike([section.steps[x][task], section.steps[y][task]]));

function updateAggregates(section, figure, heads, now) {
  const rows = $$("tbody tr[data-metric]", figure);
  $$("tbody tr[data-task]", figure).forEach((row) => row.toggleAttribute("data-shared", now.shared.includes(row.dataset.task)));
  heads.forEach((head, i) => {
    const name = head.dataset.algorithm, known = now.shared.length && !now.asWritten && !head.hidden;
    const found = known ? estimates(prepare(runsOf(section, name, now.shared)), METRICS) : null;
    for (const row of rows) {
      const cell = row.cells[i + 1];
      if (now.asWritten) restore(cell);
      else if (!found) replace(cell, null);
      else replace(cell, found[row.dataset.metric], Number(figure.dataset.digits), seedCount(section, [name], now.shared));
    }
  });
  rows.forEach((row) => (row.hidden = !now.shared.length));
  tell(figure, rows.length && !now.asWritten, `Aggregates here are over ${now.shared.length} of ${section.tasks.length} tasks, computed in the browser with ${REPLICATES} replicates.`);
}

function updateImprovement(section, figure, now) {
  for (const row of $$("tbody tr", figure)) {
    const [x, y] = JSON.parse(row.dataset.algorithms), cell = row.cells[1];
    if (row.hidden) continue;
    if (now.asWritten) restore(cell);
    else if (!now.shared.length || !comparable(section, x, y, now.shared)) row.hidden = true;
    else replace(cell, improvement(scoresByTask(section, x, now.shared), scoresByTask(section, y, now.shared)), Number(figure.dataset.digits), seedCount(section, [x, y], now.shared));
  }
  figure.hidden = !$$("tbody tr", figure).some(isShown);
  tell(figure, !now.asWritten, `Here over ${now.shared.length} of ${section.tasks.length} tasks, computed in the browser with ${REPLICATES} replicates.`);
}

function replace(cell, found, digits, seeds) {
  if (!written.has(cell)) written.set(cell, { html: cell.innerHTML, value: cell.dataset.value });
  cell.replaceChildren();
  delete cell.dataset.value;
  if (!found) return void cell.append("–");
  const few = seeds.fewest < data.enough, flat = found.low === null || found.low === found.high;
  const interval = flat ? "[n/a]" : `[${fixed(found.low, digits)}, ${fixed(found.high, digits)}]`;
  cell.dataset.value = found.value;
  cell.append(`${fixed(found.value, digits)} `, make("span", { class: few ? "spread few" : "spread", text: few ? `${interval} (n=${seeds.text})` : interval }));
}

function restore(cell) {
  const before = written.get(cell);
  if (before) [cell.innerHTML, cell.dataset.value] = [before.html, before.value];
}

/** A note below a table that stands only while it is true. */
function tell(figure, isTrue, text) {
  let note = $(".notes .live", figure);
  if (!note) $(".notes", figure).prepend((note = make("p", { class: "live" })));
  [note.hidden, note.textContent] = [!isTrue, text];
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
