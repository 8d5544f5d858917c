// The figures of a section: which series each shows, over the tasks and algorithms that are on.

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

function pooledEstimates(section, now) {
  return now.algorithms.map((name) => {
    const { fewest, text } = seedCount(section, [name], now.shared), few = fewest < data.enough;
    const runs = prepare(runsOf(section, name, now.shared));
    const found = now.asWritten ? section.aggregates[name] : estimates(runs, METRICS);
    return { ...look(section, name), name: few ? `${name} (n=${text})` : name, few, found };
  });
}

function aggregateFigures(section, now) {
  if (!now.shared.length) return [];
  const all = pooledEstimates(section, now);
  return section.metrics.map((metric) => {
    const rows = all.map((r) => ({ ...r, ...r.found[metric] }));
    const title = `${NAMES[metric]}${metric === "optimality_gap" ? " (lower is better)" : ""}, 95% interval`;
    return figure(metric, title, intervalChart({ rows, xlabel: section.axis, label: title }), () => intervalsLatex(title, rows, 1));
  });
}

function profileFigure(section, now) {
  if (!now.shared.length) return null;
  const pooled = section.runs.filter((r) => now.algorithms.includes(r.algorithm) && now.shared.includes(r.task)).map((r) => r.score);
  const low = Math.min(0, Math.max(Math.min(...pooled), -20)), high = Math.max(Math.min(Math.max(...pooled), 200), low + 1);
  const taus = Array.from({ length: 61 }, (_, i) => low + ((high - low) * i) / 60);
  const series = now.algorithms.map((name) => {
    const runs = prepare(runsOf(section, name, now.shared));
    const above = Object.fromEntries(taus.map((tau, i) => [i, (r, w) => r.score.reduce((sum, x, k) => sum + (x > tau ? w[k] : 0), 0) / r.mass]));
    const found = estimates(runs, above, 200);
    return { ...look(section, name), points: taus.map((tau, i) => [tau, found[i].value, found[i].low, found[i].high]) };
  });
  const title = "Performance profiles, 95% bands", labels = [`${section.axis} τ`, "fraction of runs above τ"];
  const svg = lineChart({ series, xlabel: labels[0], ylabel: labels[1], label: title, ys: [-0.02, 1.02] });
  return figure("profiles", title, svg, () => linesLatex(title, ...labels, series));
}

function efficiencyFigure(section, now) {
  const metric = section.metrics[0], series = [];
  for (const name of now.algorithms) {
    const curves = section.curves.filter((c) => c.algorithm === name && now.shared.includes(c.task));
    if (!curves.length || curves.length < now.shared.length) continue;
    const steps = curves[0].steps.filter((step) => curves.every((c) => c.steps.includes(step)));
    if (steps.length < 2) continue;
    const stride = Math.ceil(steps.length / 40), some = steps.filter((_, i) => (steps.length - 1 - i) % stride === 0);
    const points = some.map((step) => {
      const at = curves.flatMap((c) => c.scores.map((one) => ({ task: c.task, score: one[c.steps.indexOf(step)] })));
      const e = estimates(prepare(at), { [metric]: METRICS[metric] }, 300)[metric];
      return [step, e.value, e.low, e.high];
    });
    series.push({ ...look(section, name), points });
  }
  if (!series.length) return null;
  const title = `Sample efficiency: ${NAMES[metric]} over ${now.shared.length} task${now.shared.length === 1 ? "" : "s"}, 95% bands`, labels = [stepsLabel(series), `${NAMES[metric]}, ${section.axis}`];
  const svg = lineChart({ series, xlabel: labels[0], ylabel: labels[1], label: title });
  return figure("efficiency", title, svg, () => linesLatex(title, ...labels, series));
}

const stepsLabel = (series) => (series.some((s) => s.points[0][0] < 0) ? "steps after the switch to online" : "steps");

function improvementFigure(section, now) {
  const pairs = section.pairs.filter((p) => [p.x, p.y].every((name) => now.algorithms.includes(name)) && comparable(section, p.x, p.y, now.shared));
  if (!pairs.length || !now.shared.length) return null;
  const one = new Set(section.pairs.map((p) => p.x)).size === 1 && section.pairs.length > 1;
  const rows = pairs.map((p) => {
    const scores = (name) => scoresByTask(section, name, now.shared), few = seedCount(section, [p.x, p.y], now.shared).fewest < data.enough;
    const found = now.asWritten ? p : improvement(scores(p.x), scores(p.y));
    return { ...look(section, one ? p.y : p.x), few, value: found.value, low: found.low, high: found.high };
  });
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
