"""A task's comparisons, with the dataset beside them where an algorithm learns from both."""

import sys
from dataclasses import replace
from typing import Any

from corerl.buffers.replay import OfflineBuffer
from corerl.config import require
from corerl.nn.networks import Normalizer
from corerl.preferences import sources
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.sources import Preferences
from corerl.training import expert_rewards, preprocessing, weighting
from corerl.training.run import Run

REWARDS = ("return_range", "reward_scale", "reward_shift", "rewards")
"""What `Preprocess` does with the rewards of a dataset."""


def check_crop(crop: int | None, compared: Preferences, least: int = 1) -> None:
    """Checks an algorithm's `crop`: at least `least` steps, and no more than a segment has.

    The length of a file's segments is known only when it is read.
    """
    require(crop is None or crop >= least, f"algo.crop={crop} must be at least {least}")
    if compared.source != "teacher":
        return
    length = f"algo.preferences.length={compared.length}"
    require(compared.length >= least, f"{length} must be at least {least}")
    require(
        crop is None or crop <= compared.length,
        f"algo.crop={crop} must not exceed {length}. Set algo.crop=null to use whole segments",
    )


def refuse(data: preprocessing.Preprocess, *names: str, reason: str) -> None:
    """Raises CorerlError where one of these settings is asked for, which would change nothing."""
    usual = preprocessing.Preprocess()
    for name in names:
        value = getattr(data, name)
        unchanged = value == getattr(usual, name)
        require(
            unchanged,
            f"algo.data.{name}={value} has no effect, because {reason}. Leave algo.data.{name} out",
        )


def refuse_recorded(data: preprocessing.Preprocess) -> None:
    """Raises CorerlError where settings go by rewards that a run does not see."""
    for settings in (weighting, expert_rewards):
        settings.refuse(data, "the rewards are learned from comparisons")


def comparisons(
    run: Run, compared: Preferences, limit: float, rankings: bool = False
) -> Comparisons:
    """Returns the run's comparisons, with actions clipped to plus-minus `limit`.

    Warns where answers contradict each other. Rankings are split into their pairs, unless the algorithm
    learns from `rankings`.

    Raises:
        CorerlError: the task has discrete actions or images, or the labels are missing or broken.
    """
    found = sources.load(run, compared)
    if circular := found.in_circles():
        print(
            f"corerl: {circular:,} answers of {found.source} contradict each other (a over b, b over c, "
            "c over a). No reward fits all of these answers. Ask these questions again, or leave the answers "
            "out",
            file=sys.stderr,
        )
    if not rankings or compared.split:
        found = found.pairs()
    return replace(found, actions=found.actions.clip(-limit, limit))


def prepared(
    run: Run,
    compared: Comparisons,
    data: preprocessing.Preprocess,
    normalizer: Normalizer | None = None,
) -> tuple[Comparisons, Normalizer]:
    """Returns the comparisons with states as `data` says, and what normalises them.

    Without a `normalizer` it is made of the compared segments' own statistics.
    """
    if normalizer is None:
        states = compared.segments(compared.observations).reshape(-1, compared.observation_dim)
        mean, std = states.mean(0, dtype="float64"), states.std(0, dtype="float64") + 1e-3
        if not data.normalize_states:
            mean, std = 0 * mean, 0 * std + 1
        normalizer = Normalizer.of(mean, std).to(run.device)
    require(
        len(normalizer.mean) == compared.observation_dim,
        f"the segments of {compared.id} ({compared.source}) have {compared.observation_dim} "
        f"features, but the data of {run.task.id} has {len(normalizer.mean)}. Choose labels of "
        "the same task",
    )
    compared = replace(
        compared,
        observations=normalizer.of_array(compared.observations),
        next_observations=normalizer.of_array(compared.next_observations),
    )
    return compared, normalizer


def load(
    cfg: Any, run: Run, rankings: bool = False, timed: bool = False
) -> tuple[Comparisons, OfflineBuffer | None, Normalizer]:
    """Loads the comparisons, the dataset beside them where `cfg.replay`, and the policy's normaliser.

    `rankings` as for `comparisons`. Labels that are missing show before the dataset is read. Steps may have
    durations where the caller is `timed`: those of a comparison's segments are not kept.
    """
    compared = comparisons(run, cfg.preferences, cfg.data.clip_actions, rankings)
    require(
        compared.length > 1,
        f"segments of {compared.id} ({compared.source}) have 1 step, but must have at least 2",
    )
    buffer, normalizer = None, None
    refuse_recorded(cfg.data)
    if not timed and (cfg.replay or cfg.preferences.source == "teacher"):
        preprocessing.check_durations(cfg, run.dataset(), timed=False)
    if cfg.replay:
        buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    compared, normalizer = prepared(run, compared, cfg.data, normalizer)
    return compared, buffer, normalizer
