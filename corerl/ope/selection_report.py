"""What `corerl evaluate --select` prints and writes: how well estimates choose among runs."""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np
from rich.console import Console

from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.ope import results, selection
from corerl.ope.estimators import weighs
from corerl.ope.judgement import Judgement
from corerl.ope.logs import Logs
from corerl.ope.policies import distance, of_run
from corerl.policies.load import Loaded
from corerl.runs import terminal
from corerl.runs.files import make_directory


def report(
    console: Console,
    judged: list[tuple[Loaded, Judgement]],
    dataset: Dataset,
    methods: list[str],
    args: argparse.Namespace,
) -> None:
    """Compares the estimates of all runs with their returns in the simulator, in `args.select`.

    An estimate that is no finite number, as of a critic that diverged, is ranked below all others.

    Raises:
        CorerlError: fewer than two policies were played.
    """
    policies, given, impossible = _played(judged, dataset, methods, args)
    require(
        len(policies) > 1,
        "--select needs at least two policies that training evaluated in the simulator. Train with "
        "eval.episodes=10, or play pending evaluations with: corerl evaluate RUN --pending",
    )
    truths = np.array([policy.truth for policy in policies])
    labels = [policy.algorithm for policy in policies]
    discount = judged[0][1].discount
    recorded = float(dataset.episode_returns().mean())
    good = {name: (_as_judged(name, discount, dataset, args), recorded) for name in methods}
    as_played = args.policy == "act" and args.epsilon is None
    same = discount == 1 and args.horizon is None and args.finite and as_played
    infinite = {name: ~np.isfinite(values) for name, values in given.items()}
    estimates = {name: selection.last(given[name], infinite[name]) for name in methods}
    rows = [
        selection.assess(
            *(name, values, truths, good[name]),
            groups=labels,
            same_unit=same and not infinite[name].any(),
        )
        for name, values in estimates.items()
    ]
    for name, marked in impossible.items():
        if marked.any():
            values = selection.last(estimates[name], marked)
            title = f"{name}, impossible ones last"
            rows.append(selection.assess(title, values, truths, good[name], groups=labels))
    ranks = {name: selection.overrated(x, truths, labels) for name, x in estimates.items()}
    far = np.array([policy.distance for policy in policies])
    distances = {
        label: float(far[mine].mean()) for label, mine in selection.members(labels).items()
    }
    marks = {f"{name} impossible": marked.astype(int) for name, marked in impossible.items()}
    try:
        make_directory(args.select)
        results.write_selection(args.select, rows, given | marks, policies, ranks, distances)
        figure = selection.draw(estimates, truths, labels, recorded)
        figure.savefig(args.select / "selection.png", dpi=130)
    finally:  # what was chosen is shown also where it cannot be written
        _print_selection(console, rows)
        for name, of_labels in ranks.items():
            _print_ranks(console, name, of_labels, distances)
    print(f"wrote selection.csv, policies.csv, algorithms.csv and selection.png to {args.select}")


def _played(
    judged: list[tuple[Loaded, Judgement]],
    dataset: Dataset,
    methods: list[str],
    args: argparse.Namespace,
) -> tuple[list[results.Judged], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the policies that were played, their estimates, and which of these are impossible."""
    policies = []
    estimates, impossible = {name: [] for name in methods}, {name: [] for name in methods}
    for agent, judgement in judged:
        known = results.simulated(agent)
        policy = of_run(agent, chance=args.policy, epsilon=args.epsilon)
        far = distance(policy, dataset)
        for i, seed in enumerate(agent.seeds):
            if seed not in known:
                print(
                    f"corerl: left out {agent.path}, seed {seed}, which training did not evaluate in the "
                    "simulator",
                    file=sys.stderr,
                )
                continue
            if agent.steps[i] < agent.cfg.steps:
                print(
                    f"corerl: {agent.path}, seed {seed}, has not finished training, so it is judged after "
                    f"{agent.steps[i]:,} of {agent.cfg.steps:,} steps",
                    file=sys.stderr,
                )
            facts = (agent.label, agent.path.name, seed, agent.steps[i], float(far[i]))
            policies.append(results.Judged(*facts, known[seed]))
            for name in methods:
                estimates[name].append(judgement.of(name)[i])
                impossible[name].append(judgement.impossible(name)[i])
    arrays = ({k: np.array(v) for k, v in x.items()} for x in (estimates, impossible))
    return policies, *arrays


def _print_selection(console: Console, rows: list[selection.Selection]) -> None:
    table = terminal.table(
        (
            *("method", "rank\ncorrelation", "over\nalgorithms", "regret\n@1", "regret\n@3"),
            *("type\nI", "type\nII", "Sharpe\n@3", "MSE"),
        ),
        left=("method",),
        title=f"choosing among {rows[0].policies} policies",
    )
    for s in rows:
        rank = "-" if math.isnan(s.rank) else f"{s.rank:.2f}\n{_between(s.rank_low, s.rank_high)}"
        over = _between(s.rank_low_of_groups, s.rank_high_of_groups)
        rest = (s.regret_1, s.regret_3, s.type_1, s.type_2, s.sharpe_3, s.mse)
        table.add_row(s.method, rank, over, *("-" if math.isnan(x) else f"{x:.3g}" for x in rest))
    console.print(table)


def _between(low: float, high: float) -> str:
    return "-" if math.isnan(low) else f"[{low:.2f}, {high:.2f}]"


def _print_ranks(
    console: Console,
    method: str,
    ranks: dict[str, tuple[int, float, float]],
    distances: dict[str, float],
) -> None:
    """Prints the mean rank of each algorithm's policies, those that the method overrates most first."""
    table = terminal.table(
        (
            *("algorithm", "policies", "by estimate", "by return"),
            *("overrated by", "distance\nfrom the data"),
        ),
        left=("algorithm",),
        title=f"mean ranks of the policies by {method} (0 is worst, 1 is best)",
    )
    order = sorted(ranks.items(), key=lambda item: item[1][2] - item[1][1])
    for label, (count, guessed, true) in order:
        numbers = (f"{guessed:.2f}", f"{true:.2f}", f"{guessed - true:+.2f}")
        table.add_row(terminal.plain(label), str(count), *numbers, f"{distances[label]:.2f}")
    console.print(table)


def _as_judged(method: str, discount: float, dataset: Dataset, args: argparse.Namespace) -> float:
    """Returns the data's mean return as a method judges it: an endless critic's over whole recordings."""
    endless = method == "fqe" and not args.finite
    logs = Logs.of(
        *(dataset, discount, None if endless else args.horizon),
        leave_out_cut=args.leave_out_cut and not endless,
        keep_cut=not weighs([method]),
    )
    return float(logs.returns.mean())
