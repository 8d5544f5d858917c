"""Actions for episodes that were recorded without them, by a model of inverse dynamics (SS-ORL).

A few labelled episodes are enough to learn which action leads from s to s' (Zheng et al. 2023,
arXiv:2210.06518). Maximum likelihood fits a Gaussian p(a | s, s') to them. Its mean labels all others. Any
offline algorithm follows. `algo.data.inverse.labelled` first hides the actions of all but a share of the
episodes, to measure what they are worth.

What differs from the authors' code (facebookresearch/ssorl at cfefabe):

 1  the model    theirs is a tanh-Gaussian of the last k states too, of two networks of 2 x 1024 with dropout.
                 Ours is a Gaussian of (s, s'), of two networks of 2 x `hidden_width`, and means are clipped
 2  training     theirs takes the last model. Ours the one of the smallest error on a tenth of the labelled
                 episodes, as their paper describes
 3  last steps   theirs puts s for s' at every end of an episode. Ours only where no s' was recorded
 4  the dataset  theirs drops the worst episode
"""

import copy
import math
import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.config import Settings, one_of, positive, require, within
from corerl.data.dataset import Dataset
from corerl.nn import networks, optim, policies
from corerl.nn.learner import GradientStep
from corerl.training.cached import cached

HELD_OUT, LOOK_EVERY = 0.1, 100
"""Share of the labelled episodes that choose among the models, and updates between two looks at it."""


@dataclass
class Inverse(Settings):
    """Settings for the model that labels steps with actions."""

    prefix: ClassVar[str] = "algo.data.inverse."

    labelled: float | None = within(None, "(0, 1]")  # share of episodes with actions (null: all)
    pick: str = one_of("low", "random")  # low (episodes of the worse half keep actions) | random
    steps: int = positive(5_000)  # updates of the inverse dynamics model
    lr: float = positive(3e-4)
    batch_size: int = positive(256)
    hidden_width: int = positive(256)


class InverseDynamics:
    """A Gaussian over actions, given standardised states and next states."""

    def __init__(self, features: int, actions: int, cfg: Inverse):
        sizes = [features, cfg.hidden_width, cfg.hidden_width, actions]
        rngs = seeding.generators([0], "inverse dynamics")
        self.mean = networks.MLP(sizes, (1,), rngs)
        self.log_std = networks.MLP(sizes, (1,), rngs)
        parameters = [*self.mean.parameters(), *self.log_std.parameters()]
        self.step = GradientStep(self.loss, optim.Adam(parameters, cfg.lr), "off")

    def loss(self, pairs: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns minus the mean log-likelihood of actions `(1, B, A)`, `(1,)`."""
        log_std = self.log_std(pairs).clamp(-5, 2)
        return -policies.gaussian_log_prob(self.mean(pairs), log_std, actions).mean(-1), {}


def with_actions(dataset: Dataset, data: Any) -> Dataset:
    """Returns the dataset with actions for all steps, where `data.actions=inverse`.

    Raises:
        CorerlError: actions are missing and nobody asked for them, are discrete, or no two episodes have any.
    """
    if getattr(data, "actions", None) != "inverse":
        _refuse_missing(dataset)
        return dataset
    cfg = data.inverse
    require(
        not dataset.discrete,
        f"algo.data.actions=inverse is for continuous actions, but those of {dataset.id} are "
        "discrete. Leave algo.data.actions out",
    )
    if cfg.labelled is not None:
        dataset = hidden(dataset, cfg.labelled, cfg.pick)
    if dataset.unlabelled is None:
        return dataset
    known = ~dataset.unlabelled[dataset.episode_starts]
    require(
        known.sum() >= 2,
        f"Only {int(known.sum())} episodes of {dataset.id} have actions, but algo.data.actions=inverse "
        "needs at least 2. Add actions to more episodes",
    )
    columns = (
        "observations",
        "next_observations",
        "actions",
        "unlabelled",
        "has_next",
        "episode_ends",
    )
    arrays = [getattr(dataset, name) for name in columns]
    made = cached(lambda: fitted(dataset, cfg), f"inverse {cfg}", *arrays)
    error, actions = made[0, 0], made[1:]
    print(
        f"corerl: algo.data.actions=inverse fills in actions for {int(dataset.unlabelled.sum()):,} of "
        f"{len(dataset):,} rows of {dataset.id}. The model learned from {int(known.sum()):,} episodes, with "
        f"a root mean square error of {error:.3g} on held-out episodes (actions in [-1, 1])",
        file=sys.stderr,
    )
    return replace(dataset, actions=actions, unlabelled=None)


def hidden(dataset: Dataset, share: float, pick: str) -> Dataset:
    """Returns the dataset where only a share of the episodes, drawn at random, keeps its actions.

    Raises:
        CorerlError: the worse half of the episodes has fewer, or some have no actions anyway.
    """
    _refuse_missing(dataset)
    count = max(1, round(share * dataset.n_episodes))
    order = np.argsort(dataset.episode_returns(), kind="stable")
    choices = order[: (len(order) + 1) // 2] if pick == "low" else order
    require(
        count <= len(choices),
        f"algo.data.inverse.labelled={share} needs more episodes than the worse half of the data has. Set "
        "it to at most 0.5, or set algo.data.inverse.pick=random",
    )
    chosen = np.random.default_rng(0).choice(choices, count, replace=False)
    without = ~np.isin(np.arange(dataset.n_episodes), chosen)
    mask = np.repeat(without, dataset.episode_lengths())
    actions = (
        np.where(mask[:, None], 0, dataset.actions) if not dataset.discrete else dataset.actions
    )
    return replace(dataset, actions=actions, unlabelled=mask if mask.any() else None)


def fitted(dataset: Dataset, cfg: Inverse) -> np.ndarray:
    """Returns the held-out error in the first row, then all actions, `(1 + N, A)`. The model fills gaps."""
    after = np.where(dataset.has_next[:, None], dataset.next_observations, dataset.observations)
    pairs = np.concatenate([dataset.observations, after], 1).astype(np.float32)
    spread = pairs.std(0, dtype=np.float64) + 1e-6
    pairs = torch.from_numpy(
        ((pairs - pairs.mean(0, dtype=np.float64)) / spread).astype(np.float32)
    )
    actions = torch.from_numpy(dataset.actions)
    fit, held = (torch.from_numpy(rows) for rows in _split(dataset))
    model = InverseDynamics(pairs.shape[1], actions.shape[1], cfg)
    numbers = seeding.indices([0], len(fit), cfg.batch_size, "cpu", "inverse dynamics")
    lowest, best = math.inf, model.mean
    for step in range(1, cfg.steps + 1):
        rows = fit[numbers.next()]
        model.step(pairs[rows], actions[rows])
        if step % LOOK_EVERY == 0 or step == cfg.steps:
            with torch.no_grad():
                loss = float(model.loss(pairs[held][None], actions[held][None])[0])
            if loss < lowest:
                lowest, best = loss, copy.deepcopy(model.mean)
    with torch.no_grad():
        labels = torch.cat([best(part[None])[0] for part in pairs.split(65_536)]).clamp(-1, 1)
    error = (labels[held] - actions[held]).square().mean().sqrt()
    missing = torch.from_numpy(dataset.unlabelled)
    made = torch.where(missing[:, None], labels, actions)
    return torch.cat([error.expand(1, made.shape[1]), made]).cpu().numpy()


def _split(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of labelled episodes with a next state: those to fit, and those held out."""
    episodes = np.flatnonzero(~dataset.unlabelled[dataset.episode_starts])
    chosen = np.random.default_rng(0).permutation(episodes)
    held = chosen[: max(1, round(HELD_OUT * len(chosen)))]
    of_row = np.repeat(np.arange(dataset.n_episodes), dataset.episode_lengths())
    usable = dataset.has_next & ~dataset.unlabelled
    apart = np.isin(of_row, held)
    return np.flatnonzero(usable & ~apart), np.flatnonzero(usable & apart)


def _refuse_missing(dataset: Dataset) -> None:
    if dataset.unlabelled is not None:
        episodes = int(dataset.unlabelled[dataset.episode_starts].sum())
        require(
            False,
            f"{episodes:,} of {dataset.n_episodes:,} episodes of {dataset.id} have no actions. Set "
            "algo.data.actions=inverse to predict the actions, or leave these episodes out of the file",
        )
