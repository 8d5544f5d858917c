"""Judges a run's policies: in a simulator, or from data alone with --method
(off-policy evaluation).

  corerl evaluate RUN --episodes 100      plays the policies
  corerl evaluate RUN algo.guidance=1,2,3 plays them with each of these values
                                          (settings that training does not read)
  corerl evaluate RUN --steer OTHER       plays them while another run's critic
                                          chooses among their samples (V-GPS)
  corerl evaluate RUN --pending           plays the evaluations that
                                          eval.later=true has left pending
  corerl evaluate RUN --method fqe,snpdis --data corerl/cartpole --leave-out-cut
                                          estimates returns from data alone
  corerl evaluate RUN RUN RUN --method fqe --select chosen/
                                          tests how well estimates choose among
                                          runs
  corerl evaluate RUN --rewards           compares a reward learned from
                                          comparisons with the true reward

Methods: fqe (fitted Q evaluation), is and pdis (importance sampling of
episodes and of decisions), snis and snpdis (self-normalised), dr and sndr
(doubly robust), cdf and sncdf (the distribution of returns). docs/ope.md says
what each needs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

from rich.console import Console

from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.data.tasks import Task, another
from corerl.errors import CorerlError
from corerl.launch import pending_evaluations
from corerl.ope import fqe, results, selection_report
from corerl.ope.arguments import (
    OF_DATA,
    OF_KERNELS,
    OF_PLAY,
    OF_STEERING,
    OPTIONS,
    acting_settings,
    add_options,
    fqe_settings,
    refuse,
    refuse_unused,
    steering_settings,
)
from corerl.ope.evaluation import check_methods, judge
from corerl.ope.judgement import Judgement, Options
from corerl.ope.policies import of_run, together
from corerl.policies import simulation
from corerl.policies.load import load
from corerl.policies.loaded_policy import Loaded
from corerl.policies.steering import Steered
from corerl.preferences import reward_distances
from corerl.runs import terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `corerl evaluate`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Judges every run and prints a table. With --select, how well the estimates choose."""
    args.acting = [text for text in args.runs if text.startswith("algo.") and "=" in text]
    args.runs = [text for text in args.runs if text not in args.acting]
    require(bool(args.runs), "corerl evaluate needs a run's folder before the settings")
    # Patterns of a shell may overlap; a policy that counts twice would narrow intervals.
    args.runs = list({Path(path).resolve(): path for path in args.runs}.values())
    if args.pending:
        taken = ("seed", "rewards", "method", *OF_PLAY, *OF_DATA)
        refuse(args, taken, "--pending uses the runs' own settings")
        return max(pending_evaluations.play(Path(path), args.device) for path in args.runs)
    if args.rewards:
        refuse(args, ("method", *OF_PLAY, *OF_DATA), "--rewards only compares rewards")
        return _rewards(args)
    methods = [name for name in args.method.split(",") if name]
    console = terminal.console()
    if not methods:
        return _play(console, args)
    check_methods(methods)
    refuse(args, OF_PLAY, "--method judges from data, so no episode is played")
    refuse_unused(args, methods)
    kept = True
    args.policy, args.fqe = args.policy or "act", fqe_settings(args.fqe or [])
    given = {name: x for name in OPTIONS if (x := getattr(args, name)) is not None}
    options = Options(fqe=args.fqe, **given)
    datasets: dict[Task, Dataset] = {}
    questions: dict[tuple[Task, float], list[Loaded]] = {}
    for path in args.runs:
        agent = load(path, args.seed, device=args.device)
        task = another(agent.task, args.data)
        check_task(agent, task)
        questions.setdefault((task, _discount(agent, args)), []).append(agent)
    if args.select:
        _check_comparable(questions)
    judged: list[tuple[Loaded, Judgement]] = []
    for (task, discount), agents in questions.items():
        if task not in datasets:
            datasets[task] = task.load()
        if datasets[task].discrete:
            refuse(args, OF_KERNELS, f"{task.id} has discrete actions, which need no kernel")
        asked = replace(options, discount=discount)
        for agent, judgement in _judge(agents, datasets[task], asked, methods, args):
            judged.append((agent, judgement))
            write = partial(results.write, agent, task.id, judgement)
            show = partial(_print, console, agent, task.id, judgement)
            kept &= _keep("written to", write, show)
    if args.select:
        selection_report.report(console, judged, next(iter(datasets.values())), methods, args)
    return 0 if kept else 2


def _keep(reported: str, write: Callable[[], Path], show: Callable[[], None]) -> bool:
    """Writes what was computed before it is shown, and tells where, or why not: others follow anyway."""
    try:
        path = write()
    except (CorerlError, OSError) as error:
        show()
        print(f"corerl: {error}", file=sys.stderr)
        return False
    show()
    print(f"{reported} {path}")
    return True


def _check_comparable(questions: dict[tuple[Task, float], list[Loaded]]) -> None:
    """Raises CorerlError where estimates would be of different returns. Names the first run that differs."""
    (first, discount), (one, *_) = next(iter(questions.items()))
    for (task, other), (agent, *_) in questions.items():
        require(
            task.id == first.id,
            f"--select compares policies on one dataset, but {one.path} has {first.id} and {agent.path} has "
            f"{task.id}. Choose a dataset with --data",
        )
        require(
            task == first,
            "--select needs policies with the same history and action_range, "
            f"which differ between {one.path} and {agent.path}. Leave one of the two out",
        )
        require(
            other == discount,
            f"--select compares returns with one discount, but {one.path} has {discount:g} and "
            f"{agent.path} has {other:g}. Choose a discount with --discount",
        )


def _play(console: Console, args: argparse.Namespace) -> int:
    """Plays episodes in the simulator, where no method is given."""
    refuse(
        args,
        ("data", *OF_DATA),
        "Without --method, policies play in the simulator",
        ", or judge from data alone with --method fqe (or is, pdis, snis, snpdis, dr, sndr, cdf, sncdf)",
    )
    episodes = 100 if args.episodes is None else args.episodes
    require(episodes > 0, f"--episodes {episodes} must be positive")
    if not args.steer:
        refuse(args, OF_STEERING, "These options are for --steer only")
    kept = True
    for path, chosen, steering in product(
        args.runs, acting_settings(args.acting), steering_settings(args)
    ):
        agent = load(path, args.seed, device=args.device, tau=args.tau, acting=chosen)
        act = None
        if steering:
            other = load(args.steer, args.seed, device=args.device)
            act, agent.steering = Steered(agent, other, *steering), _kept_of(other, *steering)
        task = another(agent.task, args.task)
        played = simulation.simulate(agent, task, episodes, act=act)
        write = partial(simulation.write, agent, task, played)
        show = partial(simulation.tell, console, agent, task, played, risk=bool(args.risk))
        kept &= _keep("Returns of every episode are in", write, show)
    return 0 if kept else 2


def _kept_of(other: Loaded, samples: int, temperature: float) -> dict[str, Any]:
    return {"steer": str(other.path), "samples": samples, "temperature": temperature}


def _rewards(args) -> int:
    kept = True
    for path in args.runs:
        agent = load(path, args.seed, device=args.device)
        found = reward_distances.distances(
            agent, another(agent.task, args.data).load() if args.data else None
        )
        table = terminal.table(
            ("seed", "STARC distance", "rank correlation", "correlation", "rows"),
            title=(
                f"learned reward of {agent.label} on {agent.task.id}, compared with the true reward"
            ),
        )
        for d in found:
            numbers = (f"{x:.3f}" for x in (d.starc, d.rank, d.linear))
            table.add_row(str(d.seed), *numbers, f"{d.rows:,}")
        write = partial(reward_distances.write, agent, found)
        kept &= _keep("written to", write, partial(terminal.console().print, table))
    return 0 if kept else 2


def check_task(agent: Loaded, data: Task) -> None:
    """Raises CorerlError where the policy's environment is not the data's."""
    if agent.task.id == data.id:
        return
    try:
        envs = [task.make_env() for task in (agent.task, data)]
    except CorerlError:
        return  # no simulator: shapes are compared later
    names = [env.spec.id if env.spec else type(env.unwrapped).__name__ for env in envs]
    for env in envs:
        env.close()
    if names[0] != names[1]:
        raise CorerlError(
            f"{agent.path} learned to act in {names[0]} ({agent.task.id}), but {data.id} was "
            f"recorded in {names[1]}. Choose data of the run's own task with --data."
        )


def _discount(agent: Loaded, args) -> float:
    return agent.cfg.algo.discount if args.discount is None else args.discount


def _judge(
    agents: list[Loaded], dataset: Dataset, options: Options, methods: list[str], args
) -> Iterator[tuple[Loaded, Judgement]]:
    """Judges all policies of all runs at once, so that their critics are one program."""
    policies = [of_run(agent, chance=args.policy, epsilon=args.epsilon) for agent in agents]
    count = sum(len(agent.seeds) for agent in agents)
    show = fqe.tell(f"{count} policies on {dataset.id}", options.fqe.steps)
    whole = judge(together(policies), dataset, methods, options, device=args.device, show=show)
    rows, each = iter(whole.rows), len(whole.rows) // count
    for agent in agents:
        yield agent, replace(whole, rows=list(islice(rows, each * len(agent.seeds))))


def _print(console: Console, agent: Loaded, task: str, judgement: Judgement) -> None:
    table = terminal.table(
        (
            *("seed", "method", "statistic", "estimate", "interval"),
            *("ESS / episodes", "clipped", "note"),
        ),
        left=("method", "statistic", "note"),
        title=f"{agent.label} trained on {agent.task.id}, judged on {task}",
    )
    for row in judgement.rows:
        ess = f"{row.episodes:,}" if math.isnan(row.ess) else f"{row.ess:,.1f} / {row.episodes:,}"
        clipped = "" if math.isnan(row.clipped) else f"{row.clipped:.1%}"
        mlp_options = "" if math.isnan(row.low) else f"[{row.low:.4g}, {row.high:.4g}]"
        table.add_row(
            *(str(row.seed), row.method, row.statistic, f"{row.value:.5g}"),
            *(terminal.plain(mlp_options), ess, clipped, row.note),
        )
    console.print(table)
    for name, text in judgement.facts.items():
        console.print(terminal.plain(f"{name}: {text}"))
    known = results.simulated(agent)
    if known:
        reported = ", ".join(f"seed {seed} {value:.5g}" for seed, value in known.items())
        console.print(f"undiscounted return in the simulator: {reported}", highlight=False)
