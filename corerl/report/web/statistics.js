// The estimates of corerl.report.stats over the tasks that are on: a replicate is a weight on every run.

const REPLICATES = 1000;
const ROUNDING = 1e-12; // of the largest score: what sums of equal numbers in other orders differ by

/** Random numbers in [0, 1) from a seed (mulberry32), so that a page shows the same numbers every time. */
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Runs [{task, score}] sorted once, with each task's seeds; a task counts the same with any number of seeds. */
function prepare(runs) {
  const order = [...runs].sort((a, b) => a.score - b.score);
  const groups = new Map();
  order.forEach((run, i) => {
    if (!groups.has(run.task)) groups.set(run.task, []);
    groups.get(run.task).push(i);
  });
  const tasks = [...groups.values()];
  const most = Math.max(...tasks.map((group) => group.length));
  const unit = new Float64Array(order.length);
  tasks.forEach((group) => group.forEach((i) => (unit[i] = most / group.length)));
  const single = tasks.some((group) => group.length < 2);
  return { score: order.map((run) => run.score), tasks, most, unit, mass: most * tasks.length, single };
}

/** Weights (N,) of one replicate: seeds drawn with replacement within every task. */
function drawn(runs, next) {
  const weights = new Float64Array(runs.score.length);
  for (const group of runs.tasks) {
    for (let k = 0; k < group.length; k++) {
      const i = group[Math.floor(next() * group.length)];
      weights[i] += runs.unit[i];
    }
  }
  return weights;
}

/** The mean of the ascending scores between two cumulated weights. */
function meanBetween(score, weights, low, high) {
  let below = 0, sum = 0;
  for (let i = 0; i < score.length; i++) {
    const above = below + weights[i];
    sum += (Math.min(Math.max(above, low), high) - Math.min(Math.max(below, low), high)) * score[i];
    below = above;
  }
  return sum / (high - low);
}

const weighted = (runs, weights, of) => {
  let sum = 0;
  runs.score.forEach((x, i) => (sum += weights[i] * of(x)));
  return sum / runs.mass;
};

const METRICS = {
  iqm: (runs, weights) => {
    const cut = (Math.floor(0.25 * runs.score.length) / runs.score.length) * runs.mass;
    return meanBetween(runs.score, weights, cut, runs.mass - cut);
  },
  median: (runs, weights) => {
    const means = runs.tasks.map((group) => group.reduce((sum, i) => sum + weights[i] * runs.score[i], 0) / runs.most);
    return quantile(means.sort((a, b) => a - b), 0.5);
  },
  mean: (runs, weights) => weighted(runs, weights, (x) => x),
  optimality_gap: (runs, weights) => data.gamma - weighted(runs, weights, (x) => Math.min(x, data.gamma)),
};

function quantile(sorted, share) {
  const at = share * (sorted.length - 1), low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

/** {value, low, high} of each name of {name: statistic(runs, weights)}; low and high are null for a single seed. */
function estimates(runs, statistics, replicates = REPLICATES) {
  const names = Object.keys(statistics);
  const found = Object.fromEntries(names.map((name) => [name, { value: statistics[name](runs, runs.unit), low: null, high: null }]));
  if (runs.single) return found;
  const next = random(0);
  const draws = names.map(() => new Float64Array(replicates));
  const largest = Math.max(Math.abs(runs.score[0]), Math.abs(runs.score.at(-1)));
  for (let b = 0; b < replicates; b++) {
    const weights = drawn(runs, next);
    names.forEach((name, k) => (draws[k][b] = statistics[name](runs, weights)));
  }
  names.forEach((name, k) => {
    const low = quantile(draws[k].sort(), 0.025), high = quantile(draws[k], 0.975);
    Object.assign(found[name], { low, high: high - low <= ROUNDING * Math.max(Math.abs(low), largest) ? low : high });
  });
  return found;
}

/** P(x > y), ties one half, averaged over tasks; each a Map of task to scores. */
function improvement(x, y) {
  const pairs = [...x.keys()].map((task) => [x.get(task), y.get(task)]);
  const share = (a, b) => {
    let sum = 0;
    for (const p of a) for (const q of b) sum += p > q ? 1 : p === q ? 0.5 : 0;
    return sum / (a.length * b.length);
  };
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const value = mean(pairs.map(([a, b]) => share(a, b)));
  if (pairs.some(([a, b]) => a.length < 2 || b.length < 2)) return { value, low: null, high: null };
  const next = random(0), again = (a) => a.map(() => a[Math.floor(next() * a.length)]);
  const draws = Float64Array.from({ length: REPLICATES }, () => mean(pairs.map(([a, b]) => share(again(a), again(b))))).sort();
  return { value, low: quantile(draws, 0.025), high: quantile(draws, 0.975) };
}

/** Scores of an algorithm's runs on some tasks. */
const runsOf = (section, algorithm, tasks) =>
  section.runs.filter((run) => run.algorithm === algorithm && tasks.includes(run.task));

function scoresByTask(section, algorithm, tasks) {
  return new Map(tasks.map((t) => [t, runsOf(section, algorithm, [t]).map((run) => run.score)]));
}

/** `"3"`, `"3-5"`: the fewest and most seeds of any task. */
function seedCount(section, algorithms, tasks) {
  const counts = algorithms.flatMap((a) => tasks.map((t) => runsOf(section, a, [t]).length));
  const fewest = Math.min(...counts), most = Math.max(...counts);
  return { fewest, text: fewest === most ? `${most}` : `${fewest}-${most}` };
}
