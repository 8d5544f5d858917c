"""`corerl train`: Hydra composes the cells and its launchers run them, here or elsewhere.

Precedence: the defaults in the algorithm's `Config`, then every row of `configs/<algo>.yaml` whose
pattern matches the task, then the command line. A row's keys are spelled as on the command line.
"""

import math
import os
import shlex
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl.config import Config, require
from corerl.errors import CorerlError
from corerl.launch.arguments import Command, read
from corerl.launch.composition import cells_of, search_folder, typed
from corerl.launch.hydra_errors import sentence
from corerl.launch.process_setup import lasting_output
from corerl.launch.settings_tables import file_of, of_d4rl
from corerl.runs.files import Busy
from corerl.training.stopping import Interrupted, stopped_by_sigterm, terminated_like_ctrl_c

NO_TRIAL = (
    "No trial of the search has a score, because every trial failed or had a seed that diverged. Search "
    "other ranges."
)
STATUS = "Finished runs are kept (see corerl status). Run the same command again for the rest."


def main(arguments: list[str]) -> int:
    """Trains what the command line composes. Returns the exit status."""
    if not arguments or {"-h", "--help"} & set(arguments):
        from corerl.launch import train_help

        given = [a for a in arguments if a not in ("-h", "--help")]
        print(train_help.text(read(["-m", *given])))  # with -m, several algorithms may be given
        return 0
    command = read(arguments)
    if command.cfg == "job":
        return _show(cells_of(command), command.package)
    if command.dry_run:
        from corerl.launch.dry_run import show

        return show(cells_of(command))
    with lasting_output():
        return _launch(command, arguments)


def _show(listed: list[Config], package: str | None) -> int:
    """Prints the settings of every cell as it would run, tables and all, or the part named `package`."""
    for cfg in listed:
        found = OmegaConf.select(OmegaConf.create(asdict(cfg)), package or "")
        require(
            found is not None,
            f"--package {package} must name a setting that exists and is not null",
        )
        print(f"---\n{OmegaConf.to_yaml(found)}" if OmegaConf.is_config(found) else found)
    return 0


@dataclass
class Outcome:
    """What became of the cells: whether any began here, what went wrong, and what another process trains.

    Nothing of it is known where a launcher runs copies of this process elsewhere.
    """

    begun: bool = False
    problems: list[str] = field(default_factory=list)
    busy: list[tuple[str, Config]] = field(default_factory=list)


def _launch(command: Command, arguments: list[str]) -> int:
    """Runs the command. Where it asks Hydra to print something, Hydra prints it and nothing runs."""
    os.environ["HYDRA_FULL_ERROR"] = (
        "1"  # errors reach us as exceptions, to be printed as a sentence
    )
    outcome = Outcome()
    try:
        _hydra_run(command, outcome)
    except KeyboardInterrupt as stop:
        reported = (
            "stopped and saved"
            if isinstance(stop, Interrupted)
            else "stopped, but saved results are kept"
        )
        again = shlex.join(["corerl", "train", *arguments])
        print(f"corerl: {reported}. Resume with the same command: {again}", file=sys.stderr)
        return 130
    if not command.prints:
        _tell_end(command, outcome)
    return 0


def _hydra_run(command: Command, outcome: Outcome) -> None:
    """Has Hydra compose the cells and its launcher run them, here or elsewhere.

    Raises:
        Interrupted: stopped by a signal, after saving.
        CorerlError: what Hydra, the sweeper or the launcher refuses, or cannot do.
    """
    count, here = _count(command), os.getpid()

    def job(cfg: DictConfig) -> float | None:
        outcome.begun = True
        with lasting_output(), nullcontext() if os.getpid() == here else stopped_by_sigterm():
            found = _job(cfg, outcome, count)
        # Optuna ends at NaN, and takes None for a failed trial; its like want a number.
        to_optuna = HydraConfig.get().sweeper._target_.endswith(".OptunaSweeper")
        return None if to_optuna and math.isnan(found) else found

    try:
        sys.argv = ["corerl train", *command.for_hydra()]
        launched = hydra.main(
            version_base="1.3", config_path="pkg://corerl.configs", config_name="config"
        )
        with terminated_like_ctrl_c():
            launched(job)()
    except Exception as error:
        if "No trials are completed" in str(error):  # Optuna's, which writes no results then
            raise CorerlError(NO_TRIAL) from error
        of_hydra = isinstance(error, HydraException | OmegaConfBaseException)
        if isinstance(error, CorerlError) or (outcome.begun and not of_hydra):
            raise
        if of_hydra or isinstance(error, ValueError | yaml.YAMLError):  # of a damaged file
            raise CorerlError(sentence(error, command.overrides)) from error
        if isinstance(error, OSError) and error.filename:
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CorerlError(f"The launcher failed: {lines[-1]} {STATUS}") from error


def _tell_end(command: Command, outcome: Outcome) -> None:
    """Prints what a search has found.

    Raises:
        CorerlError: cells are not done.
    """
    problems = list(outcome.problems)
    searched = search_folder(command)
    if searched:
        _tell_best(searched)
    elif not outcome.begun:
        problems += _unfinished(command)
    problems += [problem for problem, cell in outcome.busy if _left(cell)]
    if len(problems) == 1:
        raise CorerlError(problems[0])
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise CorerlError(f"{len(problems)} runs of the sweep did not finish:\n{listed}")


def _tell_best(folder: Path) -> None:
    """Prints what a searching sweeper has found and written into the folder of the runs."""
    path = folder / "optimization_results.yaml"
    if path.exists():
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        best = found.get("best_value")  # Optuna's name; other sweepers have their own
        chosen = " ".join(f"{key}={value}" for key, value in found.get("best_params", {}).items())
        reported = f"found {path}" if best is None else f"best {best:.2f} with {chosen} ({path})"
        print(f"corerl: {reported}", file=sys.stderr)


def _count(command: Command) -> int | None:
    """Counts the cells, or None where a sweeper chooses them as it goes, or they do not compose."""
    if not command.multirun:
        return 1
    try:
        return len(cells_of(command))
    except CorerlError:
        return None


def _unfinished(command: Command) -> list[str]:
    """Lists unfinished cells by their directories, after a launcher that ran them elsewhere."""
    from corerl.launch import launch

    problems = []
    for cfg in cells_of(command):
        if left := _left(cfg):
            reported = "; ".join(dict.fromkeys(g.message for g in left if g.message))
            seeds = ", ".join(str(seed) for group in left for seed in group.seeds)
            where = f"{cfg.label or cfg.algo.label} on {cfg.task}"
            problems.append(
                f"{where}: seeds {seeds} are not done{f': {reported}' if reported else '.'}"
            )
            continue
        try:
            launch.refuse_diverged(cfg)
        except launch.Diverged as error:
            problems.append(str(error))
    return problems


def _left(cfg: Config) -> list:
    """Returns the groups of a cell that are not done, in whatever process."""
    from corerl.launch import status

    return [group for group in status.of_cell(cfg) if group.state != "done"]


def _job(cfg: DictConfig, outcome: Outcome, count: int | None) -> float:
    """Runs one cell. In a sweep its failure is kept in its directory, so that the others still run.

    What another process is training may be done by the end of the sweep, so that it is kept apart.

    Returns its mean last score, for a sweeper that searches; NaN where it has none.
    """
    from corerl.launch import last_scores, launch, worker

    in_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    job = None
    try:
        require(
            not HydraConfig.get().job.chdir,
            "hydra.job.chdir would move the runs away from root=. Leave hydra.job.chdir out",
        )
        chosen = HydraConfig.get().overrides.task
        job = typed(cfg, chosen)
        _tell_of_d4rl(job, chosen)
        launch.launch(job, _place(count))
        return last_scores.objective(job)
    except Exception as error:
        if not in_sweep and not isinstance(error, CorerlError):
            raise
        reported = worker.reported(error)
        if isinstance(error, Busy) and job is not None:
            outcome.busy.append((reported, job))
        else:
            outcome.problems.append(reported)
        if in_sweep:
            print(f"corerl: {reported}", file=sys.stderr)
            if job is not None:
                launch.keep_failure(job, error)
    return math.nan


def _tell_of_d4rl(job: Config, chosen: list[str]) -> None:
    """Says which settings a table has for D4RL's sets like this one of Minari's, which it does not take."""
    name = job.table or job.algo.name
    keys = {override.split("=")[0] for override in chosen}
    rows = {k: v for k, v in of_d4rl(name, job.task).items() if k not in keys}
    if rows:
        listed = " ".join(f"{key}={value}" for key, value in rows.items())
        print(
            f"corerl: {file_of(name)} has settings for D4RL's datasets, which {job.task} does not use. "
            f"To use these settings, add: {listed}",
            file=sys.stderr,
        )


def _place(count: int | None) -> str:
    """Names the place: `cell 2 of 9`, or nothing where there is one."""
    if HydraConfig.get().mode != RunMode.MULTIRUN:
        return ""
    number = HydraConfig.get().job.num + 1
    return f"cell {number}" if count is None else f"cell {number} of {count}"
