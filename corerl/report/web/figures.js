// The figures of a section, of the algorithms and tasks that are on.

const NAMES = { iqm: "IQM", median: "Median", mean: "Mean", optimality_gap: "Optimality gap" };

function look(section, name) {
  const [color, dash] = section.looks[name];
  return { name, of: name, color, dash };
}

/** Draws all figures of a section again. */
function updateFigures(section, frame) {
  const now = current(section);
  const parts = section.aggregates
    ? [aggregateFigures(section, now), profileFigure(section, now), efficiencyFigure(section, now), improvementFigure(section, now)]
    : [];
  $(".pooled", frame).replaceChildren(...parts.flat().filter(Boolean));
  $(".curves", frame).replaceChildren(...curveFigures(section, now));
  for (const picture of $$(".static", frame)) picture.classList.toggle("stale", off.algorithms.size + off.tasks.size > 0);
}

function figure(name, title, svg, latex) {
  return make("figure", { class: "chart", "data-chart": name }, make("figcaption", {}, title, copyButton(latex)), svg);
}

function aggregateFigures(section, now) {
  return section.metrics.map((metric) => {
    const rows = now.algorithms.map((name) => ({ ...look(section, name), ...section.aggregates[name][metric] }));
    for (const row of rows) if (row.few) row.name = `${row.name} (n=${row.n})`;
    const title = `${NAMES[metric]}${metric === "optimality_gap" ? " (lower is better)" : ""}, 95% interval`;
    return figure(metric, title, intervalChart({ rows, xlabel: section.axis, label: title }), () => intervalsLatex(title, rows, 1));
  });
}

/** The lines {algorithm: [[x, value, low, high]]} of the algorithms that are on. */
function shownLines(section, lines, now) {
  return now.algorithms.filter((name) => lines[name]).map((name) => ({ ...look(section, name), points: lines[name] }));
}

function profileFigure(section, now) {
  const series = shownLines(section, section.profiles, now);
  if (!series.length) return null;
  const title = "Performance profiles, 95% bands", labels = [`${section.axis} τ`, "fraction of runs above τ"];
  const svg = lineChart({ series, xlabel: labels[0], ylabel: labels[1], label: title, ys: [-0.02, 1.02] });
  return figure("profiles", title, svg, () => linesLatex(title, ...labels, series));
}

function efficiencyFigure(section, now) {
  const series = shownLines(section, section.efficiency, now), name = NAMES[section.metrics[0]];
  if (!series.length) return null;
  const title = `Sample efficiency: ${name} over ${section.shared.length} task${section.shared.length === 1 ? "" : "s"}, 95% bands`, labels = [stepsLabel(series), `${name}, ${section.axis}`];
  const svg = lineChart({ series, xlabel: labels[0], ylabel: labels[1], label: title });
  return figure("efficiency", title, svg, () => linesLatex(title, ...labels, series));
}

const stepsLabel = (series) => (series.some((s) => s.points[0][0] < 0) ? "steps after the switch to online" : "steps");

function improvementFigure(section, now) {
  const pairs = section.pairs.filter((p) => [p.x, p.y].every((name) => now.algorithms.includes(name)));
  if (!pairs.length) return null;
  const one = new Set(section.pairs.map((p) => p.x)).size === 1 && section.pairs.length > 1;
  const rows = pairs.map((p) => ({ ...look(section, one ? p.y : p.x), ...p }));
  const title = `Probability of improvement: P(${one ? `${pairs[0].x} > …` : `… > ${pairs[0].y}`}), 95% interval`;
  const svg = intervalChart({ rows, xlabel: "probability", label: title, xs: [-0.02, 1.02], mark: 0.5 });
  return figure("improvement", title, svg, () => intervalsLatex(title, rows, 2));
}

/** A chart for each task: the mean over seeds with its t interval, and single seeds where asked for. */
function curveFigures(section, now) {
  return now.tasks.flatMap((task) => {
    const curves = section.curves.filter((c) => c.task === task && now.algorithms.includes(c.algorithm) && c.steps.length > 1);
    if (!curves.length) return [];
    const series = curves.map((c) => ({
      ...look(section, c.algorithm),
      points: c.steps.map((step, i) => [step, c.mean[i], c.low?.[i] ?? null, c.high?.[i] ?? null]),
      seeds: singleSeeds ? c.scores.map((one) => one.map((y, i) => [c.steps[i], y])) : [],
    }));
    const title = task.slice(task.indexOf("/") + 1), labels = [stepsLabel(series), section.axis];
    const svg = lineChart({ series, xlabel: labels[0], ylabel: labels[1], label: `Learning curves on ${task}` });
    return [figure(`curve ${task}`, title, svg, () => linesLatex(title, ...labels, series))];
  });
}
