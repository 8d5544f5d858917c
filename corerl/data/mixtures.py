"""`corerl/mujoco/hopper-random-expert-05`: many poor episodes and a few good ones, of the suites' sets.

The mixtures of Hong et al. 2023 (arXiv:2306.13085), made of this machine's own regenerated sets: 1, 5, 10
or 50 percent of the steps are of the better set, the others of the random one, as many as the random set
has in all. Which episodes are taken is fixed; they stand in the order of the parts.
"""

from pathlib import Path

import numpy as np

from corerl.config import require
from corerl.data import suites
from corerl.data.dataset import ROWS, Dataset

PERCENT = (1, 5, 10, 50)
ENVIRONMENTS = {
    f"mujoco/{body}-random-{better}-{percent:02d}": environment
    for body, environment in suites.LOCOMOTION.items()
    for better in ("medium", "expert")
    for percent in PERCENT
}
"""Every mixture, and the environment that it is evaluated in."""


def parts(name: str) -> tuple[str, str, float]:
    """Returns the random set, the better one, and its share of the steps."""
    rest, _, percent = name.rpartition("-")
    body, _, better = rest.partition("-random-")
    return f"{body}-random-regenerated", f"{body}-{better}-regenerated", int(percent) / 100


def find(name: str) -> Path | None:
    """Finds the metadata file of the better set, where both parts are on this machine."""
    random, better, _ = parts(name)
    return suites.find(better) if suites.find(random) else None


def load(name: str) -> Dataset:
    """Loads the mixture. Raises CorerlError with the command that makes a part which is missing."""
    random, better, share = parts(name)
    return mixed(f"corerl/{name}", suites.load(random), suites.load(better), share)


def mixed(id: str, poor: Dataset, good: Dataset, share: float) -> Dataset:
    """Mixes whole random episodes: as many steps as `poor` has, a `share` of them from `good`.

    Raises:
        CorerlError: `good` has fewer.
    """
    rng = np.random.default_rng(0)
    wanted = {poor: (1 - share) * len(poor), good: share * len(poor)}
    chosen = []
    for dataset, steps in wanted.items():
        require(
            len(dataset) >= steps,
            f"{id} needs {steps:,.0f} steps of {dataset.id}, which has only {len(dataset):,}. "
            f"Make {dataset.id} larger, or {poor.id} smaller (corerl data make --size)",
        )
        order = rng.permutation(dataset.n_episodes)
        before = np.cumsum(dataset.episode_lengths()[order]) - dataset.episode_lengths()[order]
        chosen.append(dataset.select_episodes(np.sort(order[before < steps])))
    return joined(id, chosen)


def joined(id: str, datasets: list[Dataset]) -> Dataset:
    """Joins the episodes of several datasets one after another. Propensities only where all have them.

    A dataset without durations, beside one that has some, has steps of one unit.
    """
    arrays = {name: np.concatenate([getattr(d, name) for d in datasets]) for name in ROWS}
    likely = [d.behaviour_log_prob for d in datasets]
    known = all(x is not None for x in likely)
    timed = any(d.durations is not None for d in datasets)
    lasting = [np.ones(len(d), int) if d.durations is None else d.durations for d in datasets]
    return Dataset.from_steps(
        id,
        **arrays,
        behaviour_log_prob=np.concatenate(likely) if known else None,
        durations=np.concatenate(lasting) if timed else None,
    )
