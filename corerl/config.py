"""The settings that every algorithm shares; an algorithm's own stand in its file's `Config`."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from corerl.errors import CorerlError


def later(default: Any) -> Any:
    """A setting that came when runs had been made: at its default it is no part of a run's name.

    So a field that is added to a `Config` leaves the directories of older runs found, and only a run
    that chooses another value is a new one. `default` must be what the code did before.
    """
    return field(default=default, metadata={"later": True})


@dataclass
class Eval:
    every: int = 5_000  # updates between evaluations; the last update is always evaluated
    episodes: int = 10  # per seed and evaluation; 0 trains without evaluating

    def __post_init__(self):
        require(self.every > 0, f"eval.every={self.every} must be positive")
        require(self.episodes >= 0, f"eval.episodes={self.episodes} must not be negative")


@dataclass
class Wandb:
    mode: str = "disabled"  # disabled | online | offline; a mirror, never the record
    project: str = "corerl"
    entity: str | None = None

    def __post_init__(self):
        modes = ("disabled", "online", "offline")
        require(self.mode in modes, f"wandb.mode={self.mode} is not one of {', '.join(modes)}")


@dataclass
class Columns:
    """What a file of one's own calls things, where it is not a name that is recognised."""

    observations: Any = None  # a name, or several columns: data.columns.observations=[x,y,speed]
    actions: Any = None
    rewards: Any = None
    next_observations: Any = None
    terminated: Any = None  # a true end: nothing is worth anything after it
    truncated: Any = None  # cut off by a time limit or by the recording
    has_next: Any = None  # whether the next observation is real; null: wherever there is one
    behaviour_log_prob: Any = (
        None  # log-density of the action as it was taken, for importance sampling
    )
    episode: Any = None  # a number or name that changes where another episode begins


@dataclass
class Data:
    """How a file of one's own, task=file/PATH, is read."""

    columns: Columns = field(default_factory=Columns)
    action_low: Any = None  # what becomes -1: a number or a list; null: the environment's lowest
    action_high: Any = None  # what becomes 1
    sha256: str | None = None  # of the file; found out, and part of the run's name


@dataclass
class Config:
    """One run: an algorithm on a task with some seeds."""

    algo: Any = MISSING  # chosen by name: algo=iql
    task: str = MISSING  # names data and environment: d4rl/hopper-medium-v2
    env: str | None = later(None)  # where task=file/PATH is evaluated: gym/module:Id; null: nowhere
    data: Data = field(default_factory=Data, metadata={"later": True})
    table: str | None = None  # per-task settings: configs/<table>.yaml; null: the algorithm's own
    label: str | None = None  # the algorithm's name in tables; null: the algorithm's own
    seeds: Any = 5  # a count (seeds 0 to n-1) or a list: seeds=[3,7]
    steps: int = 1_000_000  # gradient updates (offline) or environment steps (online)
    eval: Eval = field(default_factory=Eval)
    log_every: int = 1_000  # updates between lines of metrics.jsonl
    save_every: int = 10_000  # updates between checkpoints
    root: str = "runs"  # run directories are made below it
    trust: bool = False  # calls the environment that a Minari dataset names, whatever code that is
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    compile: str = "auto"  # auto | off | compile | graph
    processes: int | None = None  # null: one per core on a CPU, one on a GPU
    wandb: Wandb = field(default_factory=Wandb)

    def __post_init__(self):
        for name in ("steps", "log_every", "save_every"):
            require(getattr(self, name) > 0, f"{name}={getattr(self, name)} must be positive")
        count = self.processes
        require(count is None or count > 0, f"processes={count} must be positive")
        seed_list(self.seeds)


def require(condition: bool, problem: str) -> None:
    """Raises a CorerlError that states `problem` where `condition` does not hold."""
    if not condition:
        raise CorerlError(f"{problem}.")


def seed_list(seeds: Any) -> list[int]:
    """`seeds` as a list: a count n means 0 to n-1.

    Raises:
        CorerlError: neither a positive count nor a list of distinct non-negative integers.
    """
    problem = f"seeds={seeds} must be a count (seeds=10) or a list of distinct seeds (seeds=[3,7])"
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        require(seeds > 0, problem)
        return list(range(seeds))
    require(isinstance(seeds, list) and len(seeds) > 0, problem)
    require(all(isinstance(s, int) and s >= 0 for s in seeds), problem)
    require(len(set(seeds)) == len(seeds), problem)
    return seeds
