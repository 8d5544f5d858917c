"""The exact static CVaR of what `algo=cvar` learns on six finite MDPs, beside the optimum and the next best.

    python results/reproduced/risk_exact/exact.py runs/risk_exact --seeds 5

Settings are those of configs/cvar.yaml; on the command line a run of them is
`corerl train algo=cvar task=risk/machine`. Here all seeds are one program, which saves half of the time of a
small network. One training serves every level: only the first stock differs, and of each the law of the
return is computed from what the policy does wherever an episode can get. Runs that are there are not made
again. Writes scores.csv beside this file, prints the table.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from corerl.algos.cvar import CVaR, train
from corerl.data.tasks import resolve
from corerl.errors import CorerlError
from corerl.launch.composition import cells
from corerl.nn.learner import Spec
from corerl.report.rows import write_rows
from corerl.risk.finite_mdp import FiniteMDP, return_law
from corerl.risk.solvers import iterated, naive
from corerl.risk.static_cvar import static
from corerl.risk.stock_policy import stock_policies
from corerl.runs.checkpoint import load_checkpoint
from corerl.training.run import Run

TASKS = ("A", "B", "C", "inventory", "machine", "market")
FIELDS = ("task", "tau", "seed", "first_stock", "promised", "cvar", "optimum", "next_best", "range")
"""`next_best`: the best static CVaR of the policies that are best for the mean, iterated and naively."""


def trained(root: Path, task: str, seeds: int, settings: list[str]) -> CVaR:
    """Trains what is missing, and returns the agent of all seeds."""
    arguments = ["algo=cvar", f"task=risk/{task}", f"seeds={seeds}", f"root={root}"]
    (cfg,) = cells([*arguments, *settings])
    run = Run(cfg, range(seeds), lambda *_: None)
    if not (run.directory / "scores.csv").exists():
        train(cfg.algo, run)
    env = run.task.make_env().unwrapped
    agent = CVaR(cfg.algo, Spec(env.observation_space.shape, env.mdp.sizes[1], run.rngs()))
    agent.load_state_dict(load_checkpoint(run.checkpoint)["state"]["agent"])
    return agent


def rows_of(task: str, agent: CVaR, seeds: int, taus: list[float]) -> list[dict]:
    """The rows of every seed and level."""
    env, rows = resolve(f"risk/{task}").make_env().unwrapped, []
    cfg, start = agent.cfg, torch.as_tensor(env.seen(0, 0)).expand(seeds, 1, -1)
    for tau in taus:
        cfg.tau = tau
        best, other = optima(env.mdp, tau)
        first, promised = agent.first_stock(start)
        policies = stock_policies(env.mdp, agent.act, env.seen, first, (cfg.low, cfg.high))
        for seed, policy in enumerate(policies):
            value = return_law(env.mdp, policy)[0].cvar(tau)
            of_seed = (float(first[seed]), float(promised[seed]), value)
            known = (f"risk/{task}", tau, seed, *of_seed, best, other, cfg.high - cfg.low)
            rows.append(dict(zip(FIELDS, known, strict=True)))
    return rows


def optima(mdp: FiniteMDP, tau: float) -> tuple[float, float]:
    """The largest static CVaR, and the largest of the policies that are optimal for something else."""
    others = (static(mdp, 1.0), iterated(mdp, tau), naive(mdp, tau))
    return static(mdp, tau).value, max(s.law.cvar(tau) for s in others)


def table(rows: list[dict]) -> str:
    """A row of Markdown per task and level."""
    lines = [
        "| task | tau | optimum | next best | seeds | learned: mean | worst | lost: mean | worst | "
        "next best loses | promise less truth |",
        "| --- |" + " ---: |" * 10,
    ]
    for task, tau in dict.fromkeys((row["task"], row["tau"]) for row in rows):
        group = [row for row in rows if (row["task"], row["tau"]) == (task, tau)]
        one, share = group[0], 100 / group[0]["range"]
        values = np.array([row["cvar"] for row in group])
        lost, next_lost = share * (one["optimum"] - values), one["optimum"] - one["next_best"]
        over = share * (np.array([row["promised"] for row in group]) - values)
        shown = [one["optimum"], one["next_best"], len(group), values.mean(), values.min()]
        cells = [task, f"{tau:g}", *(f"{value:.4g}" for value in shown)]
        cells += [f"{x:.2f}" for x in (lost.mean(), lost.max(), share * next_lost)]
        lines.append("| " + " | ".join([*cells, f"{over.min():.2f} to {over.max():.2f}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("settings", nargs="*", help="as on the command line: algo.critic=quantile")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tau", type=float, nargs="+", default=[0.25, 0.5])
    parser.add_argument("--scores", type=Path, default=Path(__file__).parent / "scores.csv")
    asked, rows = parser.parse_intermixed_args(), []
    for task in asked.tasks:
        agent = trained(asked.root, task, asked.seeds, asked.settings)
        rows += rows_of(task, agent, asked.seeds, asked.tau)
        write_rows(asked.scores, FIELDS, rows, ".6g")
        print(table(rows), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        main()
    except CorerlError as error:
        sys.exit(f"exact.py: {error}")
