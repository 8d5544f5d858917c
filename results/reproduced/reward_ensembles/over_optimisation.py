"""True return and learned return along training, with one learned reward and with five.

    corerl train sweep=over_optimisation
    corerl train sweep=over_optimisation algo.reward.members=1 algo.reward.ensemble=mean,worst
    python results/reproduced/reward_ensembles/over_optimisation.py runs/over_optimisation

Plays the policies that the runs kept. Writes over_optimisation.csv and over_optimisation.png beside this
file, and prints a table. The learned return is what the policy's reward says of its steps, in standard
deviations over the steps of the first kept policy, which explored without a reward.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from corerl.config import Config
from corerl.data import tasks
from corerl.policies.load import rebuilt, settings
from corerl.policies.restored import Restored
from corerl.report.rows import cells, write_rows
from corerl.runs import pending
from corerl.runs.checkpoint import load_checkpoint
from corerl.runs.directory import groups, seeds_of_group
from corerl.training.evaluation import Evaluator

HERE = Path(__file__).parent
CELL = ("members", "ensemble")
FIELDS = (*CELL, "seed", "step", "true", "learned")
NAMES = {
    (1, "mean"): "one",
    (1, "worst"): "one, scaled per batch",
    (5, "mean"): "five, mean",
    (5, "worst"): "five, worst",
    (5, "uncertainty"): "five, uncertainty",
}
EPISODES = 10


def rows_of(root: Path) -> list[dict]:
    """Plays every kept policy of every seed."""
    rows = []
    for config in sorted(root.rglob("config.yaml")):
        cfg = settings(config.parent)
        cell = (cfg.algo.reward.members, cfg.algo.reward.ensemble)
        for folder, _ in groups(config.parent):
            seeds = seeds_of_group(folder.name)
            agents = {step: _kept(cfg, folder, step) for step in pending.steps(folder)}
            if not agents:
                continue
            reward = agents[max(agents)].state["agent"].reward
            evaluator = Evaluator(tasks.of(cfg).make_env, seeds, EPISODES)
            scale = None
            for step, agent in agents.items():
                act = Recorded(agent.act)
                true = evaluator(act).returns.mean(1)
                members = reward(torch.cat(act.rows, 1)[:, None]).detach()  # (S, M, N)
                scale = scale or (members.mean(-1, keepdim=True), members.std(-1, keepdim=True))
                learned = combined(cfg.algo.reward, (members - scale[0]) / scale[1]).mean(-1)
                rows += [
                    dict(zip(FIELDS, (*cell, seed, step, float(t), float(l)), strict=True))
                    for seed, t, l in zip(seeds, true, learned, strict=True)
                ]
            evaluator.close()
    return sorted(rows, key=lambda row: [row[name] for name in FIELDS[:4]])


def _kept(cfg: Config, folder: Path, step: int) -> Restored:
    """Returns the agents that a group of seeds kept after a step."""
    path = pending.path_of(folder, step)
    return rebuilt(cfg, load_checkpoint(path), path, seeds_of_group(folder.name))


class Recorded:
    """A policy that keeps the observations and actions of its steps, `(S, n, O + A)` each."""

    def __init__(self, act):
        self._act, self.rows = act, []

    def __call__(self, observations):
        actions = self._act(observations)
        self.rows.append(torch.cat([observations, actions], -1))
        return actions


def combined(cfg, members: torch.Tensor) -> torch.Tensor:
    """Returns what the policy gets of standardised members, `(S, M, N)` to `(S, N)`."""
    if cfg.ensemble == "worst":
        return members.amin(1)
    spread = members.var(1, correction=0) if cfg.ensemble == "uncertainty" else 0.0
    return members.mean(1) - cfg.penalty * spread


def curves(rows: list[dict], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps that all seeds have, and a row per seed."""
    seeds = sorted({row["seed"] for row in rows})
    every = [[row for row in rows if row["seed"] == seed] for seed in seeds]
    shared = min(len(own) for own in every)
    steps = np.array([row["step"] for row in every[0][:shared]])
    return steps, np.array([[row[name] for row in own[:shared]] for own in every])


def draw(rows: list[dict]) -> None:
    """Draws both returns over the steps: a column per kind, a faint line per seed."""
    kinds = list(cells(rows, CELL))
    figure, axes = plt.subplots(
        2,
        len(kinds),
        figsize=(2.3 * len(kinds), 4.4),
        layout="constrained",
        sharex=True,
        sharey="row",
    )
    for column, (cell, own) in zip(axes.T, kinds, strict=True):
        for ax, name, colour in zip(
            column, ("true", "learned"), ("#0072b2", "#d55e00"), strict=True
        ):
            steps, lines = curves(own, name)
            ax.plot(steps, lines.T, color=colour, lw=0.7, alpha=0.35)
            ax.plot(steps, lines.mean(0), color=colour, lw=2)
            ax.spines[["top", "right"]].set_visible(False)
        column[0].set_title(NAMES[cell], fontsize=9)
        column[1].set_xlabel("steps")
    axes[0, 0].set_ylabel("true return")
    axes[1, 0].set_ylabel("learned reward of a step")
    figure.savefig(HERE / "over_optimisation.png", dpi=130)


def table(rows: list[dict]) -> str:
    """Writes a row of Markdown per cell and step, with mean and standard deviation over seeds."""
    last = {(row["members"], row["ensemble"], row["seed"]): row["step"] for row in rows}
    lines = ["| members | ensemble | seeds | steps | true return | learned reward |"]
    lines += ["| ---: | --- | ---: | ---: | ---: | ---: |"]
    for cell, own in cells(rows, CELL):
        steps, true = curves(own, "true")
        learned = curves(own, "learned")[1]
        for step in sorted({steps[0], min(last.values()), steps[-1]}):
            k = int(np.flatnonzero(steps == step)[0])
            shown = [
                f"{x[:, k].mean():.{d}f}"
                + (f" ± {x[:, k].std(ddof=1):.{d}f}" if len(x) > 1 else "")
                for x, d in ((true, 0), (learned, 2))
            ]
            lines.append(
                f"| {cell[0]} | `{cell[1]}` | {len(true)} | {step:,} | {' | '.join(shown)} |"
            )
    return "\n".join(lines)


def main() -> None:
    rows = rows_of(Path(sys.argv[1]))
    write_rows(HERE / "over_optimisation.csv", FIELDS, rows, ".5g")
    print(table(rows))
    draw(rows)


if __name__ == "__main__":
    main()
