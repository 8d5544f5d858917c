"""General preference models: a vector per episode, and a skew-symmetric score of two vectors.

Zhang et al. 2025, ICML, arXiv:2410.02197. A reward orders all episodes, so that it fits no cycle. The score

    s(a, b) = sum over i of v_2i(a) v_2i+1(b) - v_2i+1(a) v_2i(b)
    P(a preferred) = sigmoid(s / temperature)

fits every antisymmetric preference of n episodes with 2 floor(n / 2) dimensions. With v = (u, 1) it is
Bradley and Terry's model, here `dimension=1`.

What differs from general-preference/general-preference-model at a376d95, whose episodes are texts.
 1. v is the mean over an episode's steps of a network of state and action.
 2. The weights of the pairs of dimensions are 1. Theirs may depend on the prompt.
 3. `normalize` scales v to norm 1, as the paper does. The line is commented out in theirs.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from corerl import seeding
from corerl.config import Settings, at_least, positive, require
from corerl.nn import compile, networks, optim
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.preferences.asking import Answers, Queries
from corerl.preferences.buffer import Pairs
from corerl.preferences.reward_models import preference_loss


@dataclass
class General(Settings):
    """The model that answers for a teacher. Part of an algorithm's `Config`, as `model`."""

    prefix: ClassVar[str] = "algo.model."

    dimension: int = at_least(0, 0)  # size of an episode's vector (0: no model, 1: Bradley-Terry)
    temperature: float = positive(1.0)  # divides scores (authors: 0.1 if dimension is above 2)
    normalize: bool = False  # scales the vectors of episodes to norm 1, as the paper does
    budget: int = positive(1_000)  # questions to the teacher per seed
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(64)
    lr: float = positive(1e-3)
    batch_size: int = positive(32)  # answers per batch

    def __post_init__(self):
        super().__post_init__()
        require(
            self.dimension < 2 or self.dimension % 2 == 0,
            f"{self.prefix}dimension={self.dimension} must be even, or 1 (Bradley-Terry), or 0 "
            "(no model)",
        )
        require(
            self.dimension != 1 or not self.normalize,
            f"{self.prefix}normalize=true would keep only the sign of a vector with "
            f"{self.prefix}dimension=1. Leave out one of the two settings",
        )


def score(one: Tensor, other: Tensor) -> Tensor:
    """Returns how much the first is preferred, `(...)`, of vectors `(..., D)`. Antisymmetric."""
    if one.shape[-1] == 1:
        return (one - other).squeeze(-1)
    return (one[..., 0::2] * other[..., 1::2] - one[..., 1::2] * other[..., 0::2]).sum(-1)


class PreferenceModel(Stateful):
    """S models of episodes of `length` steps, what they asked, and the latest episodes of each seed.

    A shorter episode counts as one that stays in its last step.

    Args:
        queue: latest episodes that one is compared with.
    """

    def __init__(self, cfg: General, spec: Spec, length: int, queue: int):
        self.cfg, self.length, self._seeds = cfg, length, list(spec.identities)
        sizes = spec.observation_dim, spec.action_dim
        widths = [sum(sizes), *[cfg.hidden_width] * cfg.hidden_layers, cfg.dimension]
        rngs = seeding.generators(self._seeds, "preferences")
        self.network = networks.MLP(widths, (spec.seeds,), rngs).to(spec.device)
        self.optimizer = optim.Adam(self.network.parameters(), cfg.lr)
        asked = Queries(budget=cfg.budget, length=length)
        self.answers = Answers(asked, sizes, spec.seeds, spec.device)
        self.queue = torch.zeros(spec.seeds, queue, length, sum(sizes), device=spec.device)
        self.queued = torch.zeros(spec.seeds, dtype=torch.int64)
        self.uniforms = seeding.uniform(self._seeds, "answers", (cfg.batch_size,), spec.device)
        self._update = compile.captured(
            GradientStep(self.loss, self.optimizer, spec.mode), spec.mode
        )

    def vectors(self, episodes: Tensor) -> Tensor:
        """Returns the vectors `(S, n, D)` of episodes `(S, n, L, O + A)`."""
        every = self.network(episodes.flatten(1, 2)).unflatten(1, episodes.shape[1:3])
        found = every.mean(2)
        return F.normalize(found, dim=-1) if self.cfg.normalize else found

    def loss(self, pairs: Pairs) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the cross-entropy of the answers."""
        inputs = torch.cat([pairs.observations, pairs.actions], -1)
        first, second = self.vectors(inputs.flatten(1, 2)).unflatten(1, inputs.shape[1:3]).unbind(2)
        logits = score(second, first) / self.cfg.temperature
        scores = torch.stack([torch.zeros_like(logits), logits], -1)
        loss, accuracy = preference_loss(scores, pairs.labels)
        return loss, {"model_loss": loss, "model_accuracy": accuracy}

    def update(self) -> dict[str, Tensor]:
        """Takes one step on answers so far. A seed without any does not move."""
        return self._update(self.answers.draw(self.uniforms.next()))

    def question(self, i: int) -> np.random.Generator | None:
        """Returns what draws the next question of seed number i, or None where the budget is spent."""
        asked = int(self.answers.count[i])
        if asked == self.cfg.budget:
            return None
        return np.random.default_rng(seeding.derive(self._seeds[i], f"question {asked}"))

    def keep(self, i: int, first: Tensor, second: Tensor, label: float) -> None:
        """Keeps an answer about two episodes `(n, O + A)` of seed number i. 1.0 prefers the second."""
        self.answers.keep(i, torch.stack([self._filled(first), self._filled(second)]), label)

    def _filled(self, episode: Tensor) -> Tensor:
        return torch.cat([episode, episode[-1:].expand(self.length - len(episode), -1)])

    @torch.no_grad()
    def join(self, i: int, episode: Tensor) -> float:
        """Takes an episode `(n, O + A)` of seed number i into its queue, and returns its wins before."""
        episode, known = self._filled(episode), int(self.queued[i])
        won = float(self.wins(episode.expand(len(self._seeds), 1, -1, -1))[i])
        if known == self.queue.shape[1]:
            self.queue[i] = self.queue[i].roll(-1, 0)
            known -= 1
        self.queue[i, known] = episode
        self.queued[i] = known + 1
        return won

    @torch.no_grad()
    def wins(self, episodes: Tensor) -> Tensor:
        """Returns the mean chance `(S, n)` that episodes `(S, n, L, O + A)` are preferred to the queue's.

        It is 1/2 where the queue is empty.
        """
        one, other = self.vectors(episodes)[:, :, None], self.vectors(self.queue)[:, None]
        chances = torch.sigmoid(score(one, other) / self.cfg.temperature)
        places = torch.arange(self.queue.shape[1], device=chances.device)
        here = (places < self.queued[:, None].to(chances.device))[:, None]
        total = torch.where(here, chances, 0.0).sum(-1)
        count = here.sum(-1)
        return torch.where(count > 0, total / count.clamp(min=1), 0.5)
