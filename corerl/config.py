"""The settings that every algorithm shares, and how a setting declares what it may be.

An algorithm's own settings stand in its file's `Config(Settings)`:

    expectile: float = within(0.7, "(0, 1)")
    order: str = one_of("value_first", "joint")
"""

from copy import copy
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar

from omegaconf import MISSING

from corerl.errors import CorerlError

KERNELS = ("auto", "mkl", "onednn")
MOST_SEEDS = 10_000


def within(default: Any, interval: str) -> Any:
    """Declares a number in an interval such as `"(0, 1]"`, or null if its type allows it. NaN is in none."""
    return field(default=default, metadata={"interval": interval})


def positive(default: Any) -> Any:
    """Declares a finite number above 0."""
    return within(default, "(0, inf)")


def at_least(least: int, default: Any) -> Any:
    """Declares a finite number that is `least` or more."""
    return within(default, f"[{least}, inf)")


def one_of(default: str, *others: str) -> Any:
    """Declares a name from a list. The first is the default."""
    return field(default=default, metadata={"choices": (default, *others)})


def acting(declared: Any) -> Any:
    """Marks a setting that no update on data reads. `corerl evaluate RUN algo.x=...` may change it."""
    return _marked(declared, "acting")


def added(declared: Any) -> Any:
    """Marks a setting that came when runs had been made: at its default it is no part of a run's name.

    So the directories of older runs are found, and only a run that chooses another value is a new one. Its
    default, or the field that declares it, must be what the code did before.
    """
    return _marked(declared if isinstance(declared, Field) else field(default=declared), "added")


def _marked(declared: Field, mark: str) -> Any:
    marked = copy(declared)
    marked.metadata = declared.metadata | {mark: True}
    return marked


def group(kind: type, **values: Any) -> Any:
    """Declares settings inside settings: a `kind` of these values."""
    return field(default_factory=lambda: kind(**values))


LARGEST_COUNT = 10**6
"""The largest whole number that no other entry names: of things held in memory or looped over together."""
LARGEST_NUMBER = 1e18
"""The largest other number, and minus it the smallest: float32 holds its square, as losses do."""
LARGEST = {
    "seed": 2**63 - 1,  # the largest that a generator of random numbers takes
    "processes": 10_000,
    "lr": 10,  # Adam moves every weight by so much
    **dict.fromkeys(("levels", "layers", "heads", "critics", "members"), 1_000),
    "bandwidths": LARGEST_NUMBER,  # of kernels, not of networks
    **dict.fromkeys(("width", "widths", "features", "cosines"), 2**14),  # its square has a gigabyte
    **dict.fromkeys(("steps", "every", "capacity", "learning_starts", "ema_start"), 10**12),
}
"""The largest values of settings whose names end so; a field whose own interval ends has that end instead.
Nothing larger fits a machine or a life, and torch would say so in words of its own, or not at all."""


class Settings:
    """A dataclass whose fields are held to what they declare, whenever one is made.

    A number that declares nothing has to be finite, and none is larger than `LARGEST` says; of a list
    every number. What concerns several settings together stands in a subclass's own `__post_init__`, after
    this one's.

    The attributes after `prefix`, and the methods without an underscore, are what corerl asks of an
    algorithm's settings. Here they have the answers of an algorithm that has no such thing. A `Config`
    gives others by a setting, an attribute, a property or a method of the same name.

    Attributes:
        prefix: what stands before a setting's name on the command line.
        actions: which it takes: `continuous`, `discrete` or `any`.
        images: whether observations may be images besides vectors.
        padding: of its convolutions over images. With `valid`, images must not be too small.
        knows_goals: whether it learns to reach goals.
        data: settings of how it reads the task's data, or of how it gathers its own.
        preferences: settings of the comparisons that it learns from.
        crop: steps that it reads of each compared segment. None reads all.
        phase: where it trains if it learns from data: `offline`, or with `FineTuning` `online` or `both`.
        random_steps: environment steps before its first update. See `first_update`.
        policy_delay: critic updates per policy update. See `steps_multiple`.
        validate_every: updates between looks at the task's validation data. 0 never looks.
        discount: of its values. What judges its policy or reward uses the same.
        objective, tau: what of the return it optimises, and the share of worst returns that counts.
    """

    prefix: ClassVar[str] = "algo."
    actions: ClassVar[str] = "continuous"
    images: ClassVar[bool] = False
    padding: ClassVar[str] = "valid"
    knows_goals: ClassVar[bool] = False
    data: ClassVar[Any] = None
    preferences: ClassVar[Any] = None
    crop: ClassVar[int | None] = None
    phase: ClassVar[str] = "offline"
    random_steps: ClassVar[int] = 0
    policy_delay: ClassVar[int] = 1
    validate_every: ClassVar[int] = 0
    discount: ClassVar[float] = 0.99
    objective: ClassVar[str] = "mean"
    tau: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        for declared in fields(self):
            value, key = getattr(self, declared.name), self.prefix + declared.name
            if choices := declared.metadata.get("choices"):
                require(value in choices, f"{key}={value} is not one of {', '.join(choices)}")
            for number in value if isinstance(value, list | tuple) else [value]:
                if isinstance(number, int | float) and not isinstance(number, bool):
                    _check(number, declared, f"{key}={value}")
            self._check_range(declared.name)

    def _check_range(self, name: str) -> None:
        """Raises where a `..._min` is above its `..._max`: what is clamped to them would be constant."""
        top = f"{name.removesuffix('_min')}_max"
        low, high = getattr(self, name), getattr(self, top, None)
        if name.endswith("_min") and None not in (low, high):
            reported = f"{self.prefix}{name}={low} must not be above {self.prefix}{top}={high}"
            require(low <= high, reported)

    @property
    def learns_from_data(self) -> bool:
        """Whether training reads the task's data."""
        return self.data is not None or self.preferences is not None

    def needed_actions(self) -> tuple[str, str]:
        """Returns which actions an algorithm takes as it is set, and in words the setting that decides."""
        return self.actions, ""

    def first_phase(self) -> tuple[int, str]:
        """Returns how many updates an algorithm makes before its policy's, and the setting that says so."""
        return 0, ""

    def first_update(self) -> tuple[int, str]:
        """Returns how many environment steps precede the first update, and the setting that says so."""
        return self.random_steps, "algo.random_steps"

    def steps_multiple(self) -> tuple[int, str]:
        """Returns a number and the setting that gives it. `steps` must be a multiple of that number."""
        return self.policy_delay, "algo.policy_delay"


def _check(value: float, declared: Field, shown: str) -> None:
    """Raises where a field's number is outside its interval, or larger than any."""
    interval = declared.metadata.get("interval", "(-inf, inf)")
    low, high = map(float, interval[1:-1].split(","))
    above = low <= value if interval[0] == "[" else low < value
    below = value <= high if interval[-1] == "]" else value < high
    require(above and below, f"{shown} {_demand(interval)}")
    if not interval.endswith(" inf)"):
        return
    usual = LARGEST_NUMBER if "float" in str(declared.type) else LARGEST_COUNT
    most = next((LARGEST[end] for end in LARGEST if declared.name.endswith(end)), usual)
    reported = f"at most {most:,}" if value > 0 else f"at least -{most:,}"
    require(abs(value) <= most, f"{shown} must be {reported}")


def _demand(interval: str) -> str:
    """Tells what a value outside the interval should be."""
    low = interval[1:].partition(",")[0]
    if not interval.endswith(" inf)"):
        return f"must lie in {interval}"
    if low == "0":
        return "must be positive" if interval[0] == "(" else "must not be negative"
    return "must be a finite number" if low == "-inf" else f"must be at least {low}"


@dataclass
class Eval(Settings):
    prefix: ClassVar[str] = "eval."

    every: int = positive(5_000)  # updates between evaluations, besides that of the last update
    episodes: int = at_least(0, 10)  # episodes per seed and evaluation (0: no evaluation)
    later: bool = added(False)  # saves policies for `corerl evaluate RUN --pending` to play

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.episodes > 0 or not self.later,
            "eval.later=true saves policies to evaluate later, but eval.episodes=0 plays no "
            "episode. Set eval.later=false or eval.episodes=10",
        )


@dataclass
class Wandb(Settings):
    prefix: ClassVar[str] = "wandb."

    mode: str = one_of("disabled", "online", "offline")  # disabled | online | offline (W&B logging)
    project: str = "corerl"  # project in Weights & Biases
    entity: str | None = None  # user or team in Weights & Biases (null: your default)


@dataclass
class Columns(Settings):
    """What your own file calls things, where it is not a name that is recognised."""

    prefix: ClassVar[str] = "data.columns."

    observations: Any = None  # column of observations, or a list of columns, such as [x,y,speed]
    actions: Any = None  # column of actions, or a list of columns
    rewards: Any = None  # column of rewards
    next_observations: Any = None  # column of next observations, or a list of columns
    terminated: Any = None  # column with 1 where an episode ends in a terminal state
    truncated: Any = None  # column with 1 where a time limit or the end of the data ends an episode
    has_next: Any = None  # column with 1 where the next observation is valid (null: all recorded)
    behaviour_log_prob: Any = None  # column of log pi(a|s) of the policy that recorded the data
    durations: Any = added(None)  # column of step durations, whole numbers of at least 1
    episode: Any = None  # column with the number or name of the row's episode


@dataclass
class Data(Settings):
    """How your own file, task=file/PATH, is read."""

    prefix: ClassVar[str] = "data."

    columns: Columns = group(Columns)
    action_low: Any = None  # action scaled to -1, number or list (null: the environment's lowest)
    action_high: Any = None  # action scaled to 1, number or list (null: the environment's highest)
    sha256: str | None = None  # SHA-256 of the file, set by corerl and part of the run's name

    def __post_init__(self):
        super().__post_init__()
        self.action_low, self.action_high = map(_as_written, (self.action_low, self.action_high))


@dataclass
class Config(Settings):
    """One run: an algorithm on a task with some seeds."""

    prefix: ClassVar[str] = ""

    algo: Any = MISSING  # name of the algorithm, as in algo=iql
    task: str = MISSING  # name of the task (data and environment), such as d4rl/hopper-medium-v2
    env: str | None = added(None)  # environment to evaluate task=file/PATH, such as gym/module:Id
    data: Data = added(group(Data))
    history: int = added(within(1, "[1, 1000]"))  # how many latest observations form the input
    action_range: Any = added(None)  # limits actions to [low, high] within [-1, 1] (null: no limit)
    table: str | None = None  # per-task settings in configs/<table>.yaml (null: the algorithm's)
    label: str | None = None  # the algorithm's name in tables (null: its own label)
    seeds: Any = 5  # number of seeds (n means 0 to n-1), or a list such as [3,7]
    steps: int = positive(1_000_000)  # gradient updates (offline) or environment steps (online)
    eval: Eval = field(default_factory=Eval)
    log_every: int = positive(1_000)  # updates between lines of metrics.jsonl
    save_every: int = positive(10_000)  # updates between checkpoints
    save_minutes: float = at_least(0, 0.0)  # minimum number of minutes between two checkpoints
    root: str = "runs"  # folder for the runs
    trust: bool = False  # lets corerl run the environment code that a Minari dataset names
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    compile: str = "auto"  # auto | off | compile (torch.compile) | graph (CUDA graph of an update)
    kernel: str = one_of(*KERNELS)  # auto | mkl | onednn (CPU library for float32 matmul)
    precision: str = added(  # highest (float32 matmul) | high (TF32) | medium (bfloat16)
        one_of("highest", "high", "medium")
    )
    processes: int | None = positive(None)  # training processes (null: one per CPU core or GPU)
    wandb: Wandb = field(default_factory=Wandb)
    tensorboard: bool = added(False)  # writes event files for `tensorboard --logdir runs`

    def __post_init__(self):
        super().__post_init__()
        seed_list(self.seeds)
        if self.env is not None:  # with and without its prefix it is one environment, and one run
            self.env = f"gym/{self.env.removeprefix('gym/')}"
        self.action_range = _as_written(self.action_range)

    def policy_steps(self) -> int:
        """Returns the steps after the algorithm's first phase, or raises CorerlError where there are none."""
        spent, setting = self.algo.first_phase()
        require(
            self.steps > spent,
            f"{setting}={spent} must be less than steps={self.steps}, because the policy learns only "
            "after these first steps",
        )
        return self.steps - spent


def _as_written(value: Any) -> Any:
    """Returns whole numbers, also in lists, without a point: -2 and -2.0 are one setting, and one run."""
    if isinstance(value, list | tuple):
        return [_as_written(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def require(condition: bool, problem: str) -> None:
    """Raises a CorerlError that states `problem` where `condition` does not hold."""
    if not condition:
        raise CorerlError(f"{problem}.")


def seed_list(seeds: Any) -> list[int]:
    """Returns `seeds` as a list: a count n means 0 to n-1.

    Raises:
        CorerlError: neither a count nor a list of distinct non-negative integers, or more than anybody runs.
    """
    shown = str(seeds) if len(str(seeds)) < 60 else f"{str(seeds)[:50]}..."
    found = list(range(seeds)) if type(seeds) is int and 0 < seeds <= MOST_SEEDS else seeds
    sound = isinstance(found, list) and 0 < len(found) <= MOST_SEEDS
    sound = sound and all(type(seed) is int and 0 <= seed < 2**63 for seed in found)
    require(
        sound and len(set(found)) == len(found),
        f"seeds={shown} must be a count (seeds=10) or a list of distinct seeds (seeds=[3,7]), at most "
        f"{MOST_SEEDS:,}",
    )
    return found
