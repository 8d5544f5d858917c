"""R2PVI, DRPVI and PEVI: mean return under shifted dynamics, and the loss against the robust optimum.

    python results/reproduced/r2pvi/shift.py runs/r2pvi

Trains what is missing of sweep=r2pvi_shift, and reads the plan of every seed. The mean returns of a plan are
exact, so the spread is that of the data. The second table is `risk/low-rank` with more episodes. Writes
scores.csv and shift.png beside this file, and prints both tables.
"""

import csv
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from corerl.algos.r2pvi import R2PVI, train
from corerl.launch.composition import cells
from corerl.report.rows import mean_std
from corerl.risk.robust import LinearModel, best_policy, policy_value
from corerl.runs.checkpoint import load_checkpoint
from corerl.training.run import Run
from corerl.training.tabular import linear_model

VARIANTS = ("pevi", "drpvi", "r2pvi", "r2pvi_kl", "r2pvi_chi2")
AS_CODED = ("algo.least=data", "algo.penalty=authors")
SHIFTS = np.linspace(0, 1, 11)
EPISODES = (100, 1_000, 10_000)
COLOURS = {
    "PEVI": "#000000",
    "DRPVI": "#e69f00",
    "R2PVI": "#0072b2",
    "R2PVI-KL": "#009e73",
    "R2PVI-chi2": "#cc79a7",
}
FIELDS = ("task", "algorithm", "seed", "episodes", "quantity", "at", "value")


def plans(root: Path, *arguments: str, seeds: int) -> tuple[str, Run, list[R2PVI]]:
    """Trains a cell where it is missing; returns its label, its run and its learners."""
    (cfg,) = cells([*arguments, f"seeds={seeds}", f"root={root}", "eval.episodes=100"])
    run = Run(cfg, range(seeds), lambda *_: None)
    if not (run.directory / "scores.csv").exists():
        train(cfg.algo, run)
    mdp, model = linear_model(run.task)
    state, learners = load_checkpoint(run.checkpoint)["state"]["agent"]["learners"], []
    for saved in state:
        learners.append(R2PVI(cfg.algo, mdp, model, np.random.default_rng()))
        learners[-1].load_state_dict(saved)
    return cfg.label or cfg.algo.label, run, learners


def shifted(root: Path) -> list[dict]:
    """Computes the mean return of every plan at every shift."""
    rows = []
    coded = [(f"algo={name}", *AS_CODED) for name in ("r2pvi", "r2pvi_kl")]
    for variant in (*((f"algo={name}",) for name in VARIANTS), *coded):
        arguments = (*variant, "task=risk/linear-shift", "steps=100")
        label, run, learners = plans(root, *arguments, seeds=20)
        label += ", as coded" if AS_CODED[0] in variant else ""
        env = run.task.make_env().unwrapped
        for q in SHIFTS:
            model = LinearModel.of(env.shifted(q))
            for seed, learner in enumerate(learners):
                value = model.start @ policy_value(model, "none", 0.0, learner.policy())[0]
                known = (run.task.id, label, seed, 100, "mean return at shift", round(q, 1), value)
                rows.append(dict(zip(FIELDS, known, strict=True)))
    return rows


def lost(root: Path) -> list[dict]:
    """Computes what plans on more and more data lose against the robust optimum of risk/low-rank."""
    rows = []
    for variant in VARIANTS:
        for count in EPISODES:
            arguments = (
                f"algo={variant}",
                "task=risk/low-rank",
                f"steps={count}",
                "algo.scale=0.5",
            )
            arguments += (f"eval.every={count}", "algo.rewards=known")
            label, run, learners = plans(root, *arguments, seeds=5)
            model, kind = learners[0].model, learners[0].cfg.divergence()
            optimum = model.start @ best_policy(model, kind, 0.5)[0][0]
            for seed, learner in enumerate(learners):
                value = model.start @ policy_value(model, kind, 0.5, learner.policy())[0]
                known = (run.task.id, label, seed, count, "robust optimum", "", optimum)
                rows.append(dict(zip(FIELDS, known, strict=True)))
                known = (run.task.id, label, seed, count, "lost", "", max(0.0, optimum - value))
                rows.append(dict(zip(FIELDS, known, strict=True)))
    return rows


def table(rows: list[dict], column: str, quantity: str) -> str:
    """Writes mean and standard deviation over seeds: a row per algorithm, a column per value of `column`."""
    rows = [row for row in rows if row["quantity"] == quantity]
    heads = list(dict.fromkeys(row[column] for row in rows))
    lines = [
        f"| | {' | '.join(f'{head:,}' for head in heads)} |",
        "| --- |" + " ---: |" * len(heads),
    ]
    for label in dict.fromkeys(row["algorithm"] for row in rows):
        found = [
            [r["value"] for r in rows if r["algorithm"] == label and r[column] == head]
            for head in heads
        ]
        shown = [mean_std(values, 3) for values in found]
        lines.append(f"| {label} | {' | '.join(shown)} |")
    return "\n".join(lines)


def draw(rows: list[dict], path: Path) -> None:
    """Draws mean return over the shift, a line per algorithm and a band of one standard deviation."""
    figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for label, colour in COLOURS.items():
        own = [r for r in rows if r["algorithm"] == label and r["at"] != ""]
        at = sorted({float(row["at"]) for row in own})
        values = np.array([[float(r["value"]) for r in own if float(r["at"]) == q] for q in at])
        mean, std = values.mean(1), values.std(1, ddof=1)
        ax.plot(at, mean, color=colour, lw=1.4, label=label)
        ax.fill_between(at, mean - std, mean + std, color=colour, alpha=0.12, lw=0)
    ax.set(xlabel="size of the shift q", ylabel="mean return")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    root = Path(sys.argv[1])
    rows = shifted(root) + lost(root)
    draw(rows, Path(__file__).parent / "shift.png")
    with (Path(__file__).parent / "scores.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(row | {"value": f"{row['value']:.6g}"})
    shown = [row for row in rows if row["at"] in ("", 0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    print(table(shown, "at", "mean return at shift"), table(rows, "episodes", "lost"), sep="\n\n")
    optima = {row["algorithm"]: row["value"] for row in rows if row["quantity"] == "robust optimum"}
    print("\n" + ", ".join(f"{label} {value:.4f}" for label, value in optima.items()))


if __name__ == "__main__":
    main()
