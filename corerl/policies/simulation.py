"""Plays trained policies in a simulator: `corerl evaluate RUN` without `--method`.

Environment seeds come from a stream of their own, so that the initial states are others than those of the
evaluations during training, by which a run may have been chosen; equal seeds meet the same ones.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from rich.console import Console
from torch import Tensor

from corerl.data.files import own_files
from corerl.data.files.io import one_line
from corerl.data.observations import Flat, check_parts, wrapper
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.policies.loaded_policy import Loaded
from corerl.runs import files, terminal
from corerl.runs.score_rows import Episodes
from corerl.training import environment_step, risk_summary
from corerl.training.evaluation import Evaluator

STREAM = "test"
FILE = "evaluations.jsonl"


class Crash(CorerlError):
    """The environment's own error, its cause, which left no seed to play."""


def simulate(
    agent: Loaded,
    task: Task,
    episodes: int,
    *,
    make_env: Callable[[], gymnasium.Env] | None = None,
    at_once: int = 10,
    act: Callable[[Tensor], Tensor] | None = None,
) -> Episodes:
    """Plays `episodes` episodes of every seed of `agent` in the environment of `task`.

    Returns are NaN for a seed whose environment crashed. A message says so, and others go on.

    Args:
        make_env: builds it otherwise, as with a camera; None is the task's own.
        at_once: environments of a seed that are played together.
        act: chooses the actions in its place; None is `agent` itself.

    Raises:
        CorerlError: the environment cannot be made here, or is not one in which the policy can act.
        Crash: it crashed for every seed.
    """
    check_fit(agent, task)
    make = make_env or task.make_env
    evaluator = Evaluator(make, agent.seeds, episodes, agent.device, at_once, STREAM)
    try:
        return evaluated(evaluator, agent.seeds, task.id, act or agent)
    finally:
        evaluator.close()


def evaluated(
    evaluator: Evaluator, seeds: Sequence[int], task_id: str, act: Callable[[Tensor], Tensor]
) -> Episodes:
    """Plays the episodes of `evaluator` with `act`.

    Raises:
        Crash: the environment crashed for every seed.
    """
    try:
        return evaluator(act)
    except Exception as error:
        if len(evaluator.crashed) < len(seeds):  # the policy's error
            raise
        raise Crash(f"The environment of {task_id} crashed ({_reported(error)}).") from error


def _reported(error: Exception) -> str:
    """Returns an environment's error and the line that raised it, unless it is our check of a step."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    ours = frame.filename == environment_step.__file__
    where = "" if ours else f"; {Path(frame.filename).name}, line {frame.lineno}"
    return f"{one_line(error)}{where}"


def check_fit(agent: Loaded, task: Task) -> None:
    """Raises CorerlError where observations or actions of `task` are not those that `agent` knows."""
    if task == agent.task:
        return
    known, other = (_spaces(each) for each in (agent.task, task))
    for name, one, two in zip(("observations", "actions"), known, other, strict=True):
        counts = isinstance(one, spaces.Discrete) and one != two
        if one.shape != two.shape or type(one) is not type(two) or counts:
            raise CorerlError(
                f"{agent.label} learned on {agent.task.id} with {name} of {one}, but {task.id} has "
                f"{two}. Choose a task with the same {name}."
            )
    check_parts(agent.task.id, named_parts(agent.task), task.id, named_parts(task))


def _spaces(task: Task) -> tuple:
    env = task.make_env()
    env.close()
    return env.observation_space, env.action_space


def named_parts(task: Task) -> tuple[str, ...]:
    """Returns the names of an observation's parts: the environment's, or else those of a file's columns."""
    with suppress(CorerlError):  # without a simulator
        env = task.make_env()
        env.close()
        if flat := wrapper(env, Flat):
            return tuple(flat.parts)
    return tuple(own_files.parts(task.data))


def tell(
    console: Console, agent: Loaded, task: Task, episodes: Episodes, *, risk: bool = False
) -> None:
    """Prints a row per seed and their mean.

    With `risk`, and in every task of risk/, also the static CVaR of each seed. A seed whose environment
    crashed counts nothing.
    """
    whole = ~np.isnan(episodes.returns).any(1)
    scores = score(task, episodes)
    title = f"{agent.label} trained on {agent.task.id}" + (
        f", in {task.id}" if task != agent.task else ""
    )
    title += "" if agent.tau is None else f", tau {agent.tau:g}"
    steering = {name: Path(f"{value}").name for name, value in agent.steering.items()}
    title += "".join(f", {name} {value}" for name, value in (agent.acting | steering).items())
    columns = ("seed", "updates", "return", "over episodes", "score", "length", "success")
    table = terminal.table(columns, title=title)
    for i, seed in enumerate(agent.seeds):
        if not whole[i]:
            table.add_row(str(seed), f"{agent.steps[i]:,}", "crashed")
            continue
        returns, lengths, successes = (part[i] for part in episodes)
        solved = successes.mean()
        table.add_row(
            *(str(seed), f"{agent.steps[i]:,}", f"{returns.mean():.2f}"),
            f"± {returns.std(ddof=1):.2f}" if len(returns) > 1 else "",
            "" if scores is None else f"{scores[i]:.1f}",
            f"{lengths.mean():.0f}",
            "" if np.isnan(solved) else f"{100 * solved:.0f} %",
        )
    console.print(table)
    means = episodes.returns[whole].mean(1)
    count = episodes.returns.shape[1]
    spread = f" ± {means.std(ddof=1):.2f}" if len(means) > 1 else ""
    reported = f"{len(means)} " if whole.all() else f"{len(means)} of {len(whole)} "
    reported += f"seed{'s' if len(whole) > 1 else ''}, "
    reported += f"{count} episode{'s' if count > 1 else ''} each: return "
    reported += f"{means.mean():.2f}{spread}"
    if scores is not None:
        scores = scores[whole]
        reported += f", score {scores.mean():.1f}" + (
            f" ± {scores.std(ddof=1):.1f}" if len(means) > 1 else ""
        )
    reported += " (± is the standard deviation over seeds)." if len(means) > 1 else "."
    console.print(reported, soft_wrap=True, highlight=False)
    tau = risk_summary.own_tau(agent.cfg.algo) if agent.tau is None else agent.tau
    for i in np.flatnonzero(whole) if risk or task.id.startswith("risk/") else ():
        reported = f"seed {agent.seeds[i]}, {risk_summary.describe(episodes.returns[i], tau)}"
        console.print(reported, soft_wrap=True, highlight=False)


def score(task: Task, episodes: Episodes) -> np.ndarray | None:
    """Returns `(S,)` scores as in `scores.csv`, or None where the task has no scale."""
    if task.scored_by_success:
        return 100 * episodes.successes.mean(1)
    return task.normalize(episodes.returns.mean(1))


def write(agent: Loaded, task: Task, episodes: Episodes) -> Path:
    """Adds the returns to `evaluations.jsonl` in the run's folder, null for a seed that crashed."""
    path = agent.path / FILE
    common = {"task": task.id, "time": time.strftime("%Y-%m-%d %H:%M:%S")}
    common |= {} if agent.tau is None else {"tau": agent.tau}
    common |= {"algo": agent.acting} if agent.acting else {}
    common |= agent.steering
    lines = []
    for seed, step, returns in zip(agent.seeds, agent.steps, episodes.returns, strict=True):
        kept = None if np.isnan(returns).any() else returns.tolist()
        lines.append(common | {"seed": seed, "step": step, "returns": kept})
    files.append_lines(path, map(json.dumps, lines))
    return path
