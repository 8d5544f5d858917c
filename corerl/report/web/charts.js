// Charts, drawn from the page's data: lines with bands, and estimates with intervals.

const ROUNDING = 1e-12; // of the largest value: how far sums of equal numbers differ
const SIZE = { width: 360, height: 230, left: 44, right: 14, top: 8, bottom: 34 };

function ticks(low, high, count) {
  const raw = (high - low) / count, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * size).find((s) => s >= raw);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

function range(values, pad = 0.04) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (v !== null && Number.isFinite(v)) [low, high] = [Math.min(low, v), Math.max(high, v)];
  if (low > high) return [0, 1];
  if (high - low <= ROUNDING * Math.max(Math.abs(low), Math.abs(high))) return [low - 0.5, high + 0.5];
  return [low - pad * (high - low), high + pad * (high - low)];
}

/** An svg with axes; `x` and `y` map values to places. */
function plane({ xs, ys, xlabel, ylabel, xticks, yticks, label, height = SIZE.height, left = SIZE.left }) {
  const { width, right, top, bottom } = SIZE;
  const x = (v) => left + ((v - xs[0]) / (xs[1] - xs[0])) * (width - left - right);
  const y = (v) => height - bottom - ((v - ys[0]) / (ys[1] - ys[0])) * (height - top - bottom);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const v of xticks) {
    svg.append(make("line", { class: "grid", x1: x(v), x2: x(v), y1: top, y2: height - bottom }));
    svg.append(make("text", { x: x(v), y: height - bottom + 13, "text-anchor": "middle", text: short(v) }));
  }
  for (const v of yticks) {
    svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }));
    svg.append(make("text", { x: left - 5, y: y(v) + 3.5, "text-anchor": "end", text: short(v) }));
  }
  svg.append(make("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle", text: xlabel }));
  if (ylabel) svg.append(make("text", { transform: `translate(10 ${(height - bottom + top) / 2}) rotate(-90)`, "text-anchor": "middle", text: ylabel }));
  return { svg, x, y };
}

const path = (points, x, y) => points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");

/** Series [{name, color, dash, points: [[x, y, low, high]], seeds: [[[x, y]]]}] as lines with bands. */
function lineChart({ series, xlabel, ylabel, label, ys }) {
  const points = series.flatMap((s) => s.points), seeds = series.flatMap((s) => s.seeds ?? []);
  const xs = range(points.map((p) => p[0]), 0);
  ys ??= range([...points.flatMap((p) => p.slice(1)), ...seeds.flat().map((p) => p[1])]);
  const chart = plane({ xs, ys, xlabel, ylabel, label, xticks: ticks(...xs, 4), yticks: ticks(...ys, 4) });
  const { svg, x, y } = chart;
  if (xs[0] < 0 && xs[1] > 0) svg.append(make("line", { class: "mark", x1: x(0), x2: x(0), y1: y(ys[0]), y2: y(ys[1]) }));
  for (const s of series) {
    const band = s.points.filter((p) => p[2] !== null && p[2] < p[3]);
    const edge = [...band.map((p) => [p[0], p[3]]), ...band.map((p) => [p[0], p[2]]).reverse()];
    if (band.length > 1) svg.append(make("path", { class: "band", "data-algorithm": s.name, fill: s.color, d: `${path(edge, x, y)}Z` }));
  }
  for (const s of series) {
    for (const one of s.seeds ?? []) svg.append(make("path", { class: "seed", "data-algorithm": s.name, stroke: s.color, "stroke-dasharray": s.dash, d: path(one, x, y) }));
    svg.append(make("path", { class: "line", "data-algorithm": s.name, stroke: s.color, "stroke-dasharray": s.dash, d: path(s.points, x, y) }, make("title", { text: s.name })));
  }
  follow(chart, series);
  return svg;
}

/** What stands under the pointer: a rule, and the values of every line there. */
function follow({ svg, x, y }, series) {
  const rule = make("line", { class: "rule", y1: SIZE.top, y2: SIZE.height - SIZE.bottom, hidden: "" });
  const places = [...new Set(series.flatMap((s) => s.points.map((p) => p[0])))];
  svg.append(rule);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * SIZE.width;
    const near = places.reduce((a, b) => (Math.abs(x(b) - at) < Math.abs(x(a) - at) ? b : a));
    for (const end of ["x1", "x2"]) rule.setAttribute(end, x(near));
    rule.removeAttribute("hidden");
    const told = series.map((s) => [s, s.points.find((p) => p[0] === near)]).filter(([, p]) => p);
    told.sort((a, b) => b[1][1] - a[1][1]);
    tip(event, short(near), told.map(([s, p]) => [s.color, `${s.name}  ${fixed(p[1], Math.abs(p[1]) < 2 ? 2 : 1)}`]));
  });
  svg.addEventListener("pointerleave", () => {
    rule.setAttribute("hidden", "");
    $("#tip").hidden = true;
  });
}

function tip(event, head, lines) {
  const box = $("#tip");
  box.replaceChildren(make("b", { text: head }), ...lines.map(([color, text]) => make("div", {}, make("i", { style: `background:${color}` }), text)));
  box.hidden = false;
  const left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8), top = Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8);
  box.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
}

const LONGEST = 23;

/** A label in lines of whole words; a word that is too long still loses its middle. */
function labelLines(name) {
  const lines = [];
  for (const word of name.split(" ")) {
    if (lines.length && lines.at(-1).length + word.length < LONGEST) lines.push(`${lines.pop()} ${word}`);
    else lines.push(word);
  }
  return lines.map((line) => (line.length > LONGEST ? `${line.slice(0, 11)}…${line.slice(-11)}` : line));
}

/** Rows [{name, value, low, high, color, few}], one below the other. */
function intervalChart({ rows, xlabel, label, xs, mark }) {
  const names = rows.map((r) => labelLines(r.name)), most = Math.max(...names.flat().map((line) => line.length));
  const pitch = Math.max(24, 6 + 12 * Math.max(...names.map((lines) => lines.length)));
  const height = pitch * rows.length + SIZE.bottom + SIZE.top, left = Math.min(165, 14 + 6.6 * most);
  xs ??= range(rows.flatMap((r) => [r.value, r.low, r.high]), 0.06);
  const { svg, x } = plane({ xs, ys: [0, 1], xlabel, label, height, left, xticks: ticks(...xs, 4), yticks: [] });
  if (mark !== undefined) svg.append(make("line", { class: "mark", x1: x(mark), x2: x(mark), y1: SIZE.top, y2: height - SIZE.bottom }));
  rows.forEach((r, i) => {
    const y = SIZE.top + pitch * (i + 0.5), known = r.low !== null && r.low < r.high;
    const lines = names[i].map((text, k) => make("tspan", { x: left - 6, y: y + 4 + 12 * (k - (names[i].length - 1) / 2), text }));
    svg.append(make("text", { "text-anchor": "end" }, ...lines, make("title", { text: r.name })));
    const told = make("title", { text: `${r.name}: ${fixed(r.value, 2)}${known ? ` [${fixed(r.low, 2)}, ${fixed(r.high, 2)}]` : ""}` });
    if (known) svg.append(make("rect", { class: r.few ? "interval few" : "interval", "data-algorithm": r.of, fill: r.color, x: x(r.low), y: y - 7, width: x(r.high) - x(r.low), height: 14 }, told));
    svg.append(make("line", { class: "estimate", "data-algorithm": r.of, stroke: r.color, x1: x(r.value), x2: x(r.value), y1: y - 8, y2: y + 8 }));
  });
  return svg;
}
