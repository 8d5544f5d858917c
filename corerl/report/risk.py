"""Spread of returns in a report: static CVaR with intervals, their distribution, regret.

It reads what runs wrote beside their scores: `returns.jsonl`, the return of every episode of an
evaluation, and `metrics.jsonl` where an algorithm knows its regret.
"""

import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corerl.errors import CorerlError
from corerl.report import figures, stats
from corerl.report.load import pretrained
from corerl.report.options import Options
from corerl.report.our_tables import few_rule
from corerl.report.sections import Section
from corerl.report.tables import Cell, Column, Row, Table
from corerl.risk import measures
from corerl.runs.files import read_lines, read_yaml

COLLECTIONS = ("risk",)
ENOUGH = 20  # episodes per seed in the tail; with fewer an estimate is noisy and too high
REPLICATES = 2000
_TAU = re.compile(r" tau=\S+")  # in the name of one of several configurations
_COLUMNS = ["algorithm", "task", "seed", "objective", "tau", "returns"]


def add(section: Section, options: Options) -> None:
    """Gives a section of risky tasks, or any that `options.risk` asks for, its returns and their CVaR."""
    if section.name not in COLLECTIONS and not options.risk:
        return
    section.returns = read_returns(section.runs)
    if len(section.returns):
        section.tables.append(_table(section, options))
    elif options.risk:
        section.notes.append(
            "There is no CVaR, because it needs the return of every episode, which only folders of runs have."
        )


def plots(section: Section, look: dict, options: Options) -> dict[str, figures.Plot]:
    """Returns {file stem: plot} of what there is."""
    found: dict[str, figures.Plot] = {}
    if section.returns is not None and len(section.returns):
        found["returns"] = (
            "Distribution of returns: share of episodes with a return of at most x, over all seeds. Dots are "
            "at (CVaR at tau, tau) for tau 0.05, 0.1 and 0.25",
            partial(figures.distributions, section.returns, look),
        )
        if section.returns.groupby("task")["algorithm"].nunique().max() > 1:
            found["tradeoff"] = (
                f"Mean return and CVaR at {figures.TAIL:g}, as means over seeds with 95% bootstrap "
                "intervals. The label of a point is the tau that its policy was trained for",
                lambda: figures.tradeoff(trade_offs(section.returns, options)),
            )
        regret = figures.curved(read_regret(section.runs))
        if len(regret):
            caption = "Regret against the exact optimum: mean over seeds with 95% t intervals"
            found["regret"] = (caption, partial(figures.tasks, regret, look, "regret"))
    return found


# ---------------------------------------------------------------------------------------- reading


def read_returns(runs: pd.DataFrame) -> pd.DataFrame:
    """Reads a row for each run whose returns were kept: algorithm, task, seed, objective, tau, returns.

    `tau` is the tail that the run optimised, NaN where it names none.
    """
    rows = []
    for folder, group, settings in _folders(runs, "returns.jsonl"):
        before, (objective, tau) = pretrained(settings), _objective(folder, settings)
        kept = {
            (line["seed"], line["step"] - before): numbers(folder, line["returns"])
            for line in read_lines(folder / "returns.jsonl", seed=int, step=int, returns=list)
        }
        for run in group.itertuples():
            if (run.seed, run.step) in kept:
                returns = kept[run.seed, run.step]
                rows.append((run.algorithm, run.task, run.seed, objective, tau, returns))
    return pd.DataFrame(rows, columns=_COLUMNS)


def read_regret(runs: pd.DataFrame) -> pd.DataFrame:
    """Reads the regret that algorithms logged: algorithm, task, seed, step, score."""
    rows = []
    for folder, group, settings in _folders(runs, "metrics.jsonl"):
        before = pretrained(settings)
        names = {run.seed: (run.algorithm, run.task) for run in group.itertuples()}
        rows += [
            (*names[line["seed"]], line["seed"], line["step"] - before, line["regret"])
            for line in read_lines(folder / "metrics.jsonl")
            if "regret" in line and line["seed"] in names
        ]
    return pd.DataFrame(rows, columns=["algorithm", "task", "seed", "step", "score"])


def _folders(runs: pd.DataFrame, name: str) -> Iterator[tuple[Path, pd.DataFrame, dict[str, Any]]]:
    """Yields each folder that has a file of this name, as none of score files has, with its runs and their
    settings."""
    for file, group in runs.groupby("file", sort=False):
        folder = Path(file).parent
        if (folder / name).exists():
            config = folder.absolute().parent / "config.yaml"
            yield folder, group, read_yaml(config) if config.exists() else {}


def numbers(folder: Path, returns: list) -> np.ndarray:
    """Returns a line's returns as an array, for a folder that an error names."""
    try:
        return np.asarray(returns, np.float64)
    except (TypeError, ValueError) as error:
        raise CorerlError(
            f"{folder / 'returns.jsonl'}: {returns!r:.40} must be a list of returns. Repair or remove the "
            "file."
        ) from error


def _objective(folder: Path, settings: dict[str, Any]) -> tuple[str, float]:
    """Returns the objective in the settings, `static, tau 0.25`, and tau. `mean` where they name nothing.

    IQN's `risk` is the level at which it chooses actions at each state.
    """
    tau, objective, risk = map((settings.get("algo") or {}).get, ("tau", "objective", "risk"))
    if tau is None and risk not in (None, 1):
        tau, objective = risk, "naive"
    if tau is None or objective in (None, "mean"):  # without an objective, tau may be anything
        return str(objective or "mean"), math.nan
    if isinstance(tau, bool) or not isinstance(tau, int | float):
        file = folder.parent / "config.yaml"
        raise CorerlError(f"{file} is damaged: algo.tau must be a number. Repair the file.")
    return f"{objective}, tau {tau:g}", float(tau)


def trade_offs(returns: pd.DataFrame, options: Options) -> pd.DataFrame:
    """Makes a row per task and configuration: algorithm (without its tau), tau, and what figures.tradeoff
    draws: mean and lower tail of the return, with intervals."""
    replicates, rows = min(options.replicates, REPLICATES), []
    for (task, name), group in returns.groupby(["task", "algorithm"], sort=False):
        level = group["tau"].iloc[0]
        name = name if math.isnan(level) else _TAU.sub("", name)  # another's tau is no tail
        point = {"task": task, "algorithm": name, "tau": level}
        for key, tau in (("mean", 1.0), ("tail", figures.TAIL)):
            ends = stats.cvar_of_seeds(list(group["returns"]), tau, replicates=replicates)
            point |= dict(zip((key, f"{key}_low", f"{key}_high"), ends, strict=True))
        rows.append(point)
    return pd.DataFrame(rows)


# ---------------------------------------------------------------------------------------- the table


def _table(section: Section, options: Options) -> Table:
    groups = list(section.returns.groupby(["task", "algorithm", "objective"]))
    fewest = min(len(returns) for returns in section.returns["returns"])
    replicates = min(options.replicates, REPLICATES)
    played = [_played(group["returns"]) for _, group in groups]
    equal = len(set(played)) == 1
    columns = ["mean", *(f"CVaR {tau:g}" for tau in reversed(measures.TAUS)), "CVaR at own tau"]
    if section.returns["tau"].isna().all():
        columns.pop()
    largest = max(np.abs(returns).max() for returns in section.returns["returns"])
    rows = tuple(
        Row(
            f"{task.partition('/')[2]}: {algorithm} ({objective}{'' if equal else f'; {episodes}'})",
            _cells(group, replicates)[: len(columns)],
            task=task,
            algorithms=(algorithm,),
        )
        for ((task, algorithm, objective), group), episodes in zip(groups, played, strict=True)
    )
    notes = [f"Every row counts {played[0]}."] if equal else []
    notes += [
        "Parentheses name the optimised measure. Returns are undiscounted. CVaR at tau is the mean "
        "return of the worst share tau of a seed's episodes, averaged over seeds. The episode at "
        "the boundary counts in part. Brackets show 95% bootstrap intervals over seeds and "
        f"episodes ({replicates:,} replicates), or over the episodes of a single seed."
    ]
    notes += few_rule(row.cells[0] for row in rows)
    levels = sorted({*measures.TAUS, *section.returns["tau"].dropna()} - {1.0})
    few = [f"{tau:g}" for tau in levels if tau * fewest < ENOUGH]
    if few:
        notes.append(
            f"At tau {', '.join(few)} some runs have fewer than {ENOUGH} episodes in the tail, where "
            f"the estimate is noisy and on average too high. Play eval.episodes={ENOUGH}/tau."
        )
    return Table(
        "cvar",
        f"{section.name}: static CVaR of the return, {options.protocol}",
        f"task: algorithm (objective{'' if equal else '; episodes'})",
        tuple(map(Column, columns)),
        rows,
        digits=2 if largest < 100 else 1 if largest < 1000 else 0,
        notes=tuple(notes),
    )


def _played(returns: pd.Series) -> str:
    counts = sorted({len(r) for r in returns})
    episodes = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}-{counts[-1]:,}"
    return f"{len(returns)} x {episodes} episodes" if len(returns) > 1 else f"{episodes} episodes"


def _cells(group: pd.DataFrame, replicates: int) -> tuple[Cell | None, ...]:
    returns, cells = list(group["returns"]), []
    for tau in (1.0, *reversed(measures.TAUS), group["tau"].iloc[0]):
        if math.isnan(tau):
            cells.append(None)
            continue
        value, low, high = stats.cvar_of_seeds(returns, tau, replicates=replicates)
        known = not math.isnan(low)
        cells.append(Cell(value, low=low, high=high, n=str(len(returns)), interval=known))
    return tuple(cells)
