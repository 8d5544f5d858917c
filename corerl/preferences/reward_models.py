"""Rewards learned from comparisons of two segments, and from rankings of more.

A label is the probability that the second is preferred, 1/2 for a tie. Under Bradley and Terry (1952) that is
sigmoid(score 2 - score 1), the score of a segment being the sum, or the mean, of its rewards. A ranking is
as likely as Plackett and Luce (1975) have it: each segment wins against those that are left with probability
exp(score) / sum exp(score). A Markovian reward sees one step at a time: `MarkovReward`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.config import Settings, added, at_least, one_of, positive, require, within
from corerl.nn import networks, optim
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.mlp_settings import ACTIVATIONS
from corerl.preferences.buffer import PairBuffer, Pairs
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.hindsight import prior_loss
from corerl.training.run import Run

INITS = {"torch": networks.torch_init, "orthogonal": networks.orthogonal(1.0)}


@dataclass
class Markov(Settings):
    """A reward of one state and action. Part of an algorithm's `Config`, as `reward`."""

    prefix: ClassVar[str] = "algo.reward."

    steps: int = positive(1_600)  # number of first updates, which fit the reward
    members: int = positive(3)  # number of reward networks, each with batches of its own
    ensemble: str = added(  # members' mean | worst (lowest) | uncertainty (mean - penalty * var)
        one_of("mean", "worst", "uncertainty")
    )
    penalty: float = added(at_least(0, 0.5))  # weight of the variance with ensemble=uncertainty
    hidden_layers: int = at_least(0, 3)
    hidden_width: int = positive(256)
    activation: str = one_of("leaky_relu", "relu")  # leaky_relu | relu in the hidden layers
    init: str = one_of("torch", "orthogonal")  # initial weights by torch | orthogonal with gain 1
    bounded: bool = True  # rewards pass through tanh
    sigmoid: bool = added(False)  # rewards pass through a sigmoid
    prior: float = added(at_least(0, 0.0))  # weight of Hindsight PRIOR's loss (0: no such loss)
    score: str = one_of("sum", "mean")  # the score of a segment is the sum | mean of its rewards
    lr: float = positive(3e-4)
    batch_size: int = positive(64)  # comparisons per batch of each member
    stop_accuracy: float | None = within(0.968, "(0, 1]")  # accuracy at which to stop (null: never)
    seed: int | None = at_least(0, None)  # all seeds use this seed's reward (null: each its own)

    def __post_init__(self):
        super().__post_init__()
        require(
            not (self.bounded and self.sigmoid),
            f"{self.prefix}sigmoid=true and {self.prefix}bounded=true exclude each other. Set one of them "
            "to false",
        )

    def seeds(self, seeds: Sequence[int]) -> list[int]:
        """Returns, for each of the run's seeds, the seed that draws its weights and comparisons."""
        return list(seeds) if self.seed is None else [self.seed] * len(seeds)


def preference_loss(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the cross-entropy of the preferences, and the accuracy on those that are no tie.

    Args:
        scores: of the segments, `(..., B, K)`, of more than two the best first. labels: `(..., B)`, of two.

    Returns:
        Both `(...)`, means over the batch. A batch of ties alone counts as accuracy 0. Of rankings, the
        accuracy is the share of pairs in their order.
    """
    if scores.shape[-1] > 2:
        return _ranking_loss(scores)
    logits = scores[..., 1] - scores[..., 0]
    loss = (F.softplus(logits) - labels * logits).mean(-1)
    decided = (labels != 0.5).to(logits.dtype)
    right = ((logits > 0) == (labels > 0.5)).to(logits.dtype) * decided
    return loss, right.sum(-1) / decided.sum(-1).clamp(min=1)


def _ranking_loss(scores: Tensor) -> tuple[Tensor, Tensor]:
    left = scores.flip(-1).logcumsumexp(-1).flip(-1)  # log of the sum over this one and the worse
    loss = (left - scores).sum(-1).mean(-1)
    better, worse = torch.triu_indices(*[scores.shape[-1]] * 2, 1, device=scores.device)
    right = (scores[..., better] > scores[..., worse]).to(scores.dtype)
    return loss, right.mean((-2, -1))


class MarkovReward(Stateful):
    """S ensembles of M networks r(s, a). Every update uses M * B comparisons.

    Args:
        epoch: updates after which the accuracy is looked at; a seed that has exceeded
            `stop_accuracy` in an epoch learns no more.
    """

    def __init__(self, cfg: Markov, spec: Spec, epoch: int = 1):
        self.cfg, self._epoch = cfg, epoch
        inputs = spec.observation_dim + spec.action_dim
        sizes = [inputs, *[cfg.hidden_width] * cfg.hidden_layers, 1]
        lead = (spec.seeds, cfg.members)
        options = {"init": INITS[cfg.init], "activation": ACTIVATIONS[cfg.activation]}
        self.network = networks.MLP(sizes, lead, spec.rngs, **options).to(spec.device)
        self.stopping = Stopping(spec.seeds, spec.device)
        self.optimizer = (
            optim.Adam(self.network.parameters(), cfg.lr)
            if cfg.stop_accuracy is None
            else PausingAdam(self.network.parameters(), cfg.lr, self.stopping.going)
        )
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Returns rewards `(S, M, n)` of inputs `(S or 1, M or 1, n, O + A)`."""
        rewards = self.network(inputs).squeeze(-1)
        if self.cfg.sigmoid:
            return torch.sigmoid(rewards)
        return torch.tanh(rewards) if self.cfg.bounded else rewards

    def combined(self, rewards: Tensor) -> Tensor:
        """Returns what a policy gets of the members' rewards, `(S, M, N)` to `(S, N)`."""
        return combined(self.cfg, rewards)

    def loss(self, pairs: Pairs) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of M * B comparisons, summed over members, and metrics."""
        inputs = torch.cat([pairs.observations, pairs.actions], -1)
        inputs, labels = (x.unflatten(1, (self.cfg.members, -1)) for x in (inputs, pairs.labels))
        rewards = self(inputs.flatten(2, 4)).view(inputs.shape[:-1])
        scores = rewards.sum(-1) if self.cfg.score == "sum" else rewards.mean(-1)
        loss, accuracy = preference_loss(scores, labels)
        metrics = {"reward_loss": loss.mean(1), "reward_accuracy": accuracy.mean(1)}
        if self.cfg.prior:
            away = prior_loss(rewards, pairs.importance.unflatten(1, (self.cfg.members, -1)))
            metrics["prior_loss"] = away.mean(1)
            loss = loss + self.cfg.prior * away
        return loss.sum(1), metrics

    def update(self, pairs: Pairs) -> dict[str, Tensor]:
        """Takes one step. A seed that has stopped does not move."""
        metrics, limit = self._step(pairs), self.cfg.stop_accuracy
        if limit is not None:
            self.stopping.look(metrics["reward_accuracy"], self._epoch, limit)
        return metrics

    def rewards(self, observations: np.ndarray, actions: np.ndarray) -> Tensor:
        """Returns the rewards of every member at every row, `(S, M, N)`."""
        like = self.network.layers[0].weight

        @torch.no_grad()
        def of_rows(rows: slice) -> Tensor:
            parts = (torch.from_numpy(x[rows]).to(like) for x in (observations, actions))
            return self(torch.cat(list(parts), -1)[None, None])

        return in_pieces(of_rows, len(observations), 16_384)


def markov(
    run: Run, cfg: Markov, compared: Comparisons, **crops
) -> tuple[MarkovReward, PairBuffer]:
    """Returns the run's Markovian reward, not yet learned, and batches of comparisons for all its members.

    Fewer comparisons than a batch are one batch; `crops` are options of `PairBuffer`.
    """
    seeds, at_once = cfg.seeds(run.seeds), min(cfg.batch_size, len(compared))
    pairs = PairBuffer(compared, seeds, cfg.members * at_once, run.device, **crops)
    sizes = pairs.observation_dim, pairs.action_dim
    spec = Spec(*sizes, (), device=run.device, mode=run.mode, identities=run.seeds)
    return unfitted(cfg, spec, epoch=math.ceil(len(compared) / at_once)), pairs


def unfitted(cfg: Markov, spec: Spec, epoch: int = 1) -> MarkovReward:
    """Returns the Markovian reward of `spec.identities` before its first update. `epoch` as there."""
    rngs = seeding.generators(cfg.seeds(spec.identities), "reward")
    return MarkovReward(cfg, replace(spec, rngs=rngs), epoch)


class Stopping:
    """The end of each seed's training, by the mean accuracy of its epochs. `going` marks the others."""

    def __init__(self, seeds: int, device: torch.device | str = "cpu"):
        self.going = torch.ones(seeds, dtype=torch.bool, device=device)
        self._sum = torch.zeros(seeds, device=device)
        self._count = torch.zeros((), device=device)

    @torch.no_grad()
    def look(self, accuracy: Tensor, epoch: int, limit: float) -> None:
        """Counts an update's accuracy `(S,)`. An epoch whose mean exceeds `limit` is a seed's last."""
        self._count += 1
        self._sum += accuracy
        over = self._count == epoch
        self.going &= ~(over & (self._sum > limit * epoch))
        self._sum *= ~over
        self._count *= ~over

    def state_dict(self) -> dict[str, Tensor]:
        return {"going": self.going, "sum": self._sum, "count": self._count}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for mine, name in ((self.going, "going"), (self._sum, "sum"), (self._count, "count")):
            mine.copy_(state[name])


class PausingAdam(optim.Adam):
    """Adam that steps seeds where `going` `(S,)` is true. The others keep their moments and counts, too.

    Otherwise the next step of a seed that pauses would depend on the seeds beside it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, going: Tensor):
        super().__init__(parameters, lr)
        self._going, self._count = going, torch.zeros(len(going), device=going.device)

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        beta1, beta2, eps = (self._options[name] for name in ("beta1", "beta2", "eps"))
        self._count.add_(self._going)
        bias1, bias2 = (-torch.expm1(self._count * math.log(beta)) for beta in (beta1, beta2))
        means = torch._foreach_lerp(self._means, grads, 1 - beta1)
        squares = torch._foreach_mul(self._squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        scales = torch._foreach_sqrt(torch._foreach_div(squares, self._of_seeds(bias2)))
        steps = torch._foreach_div(means, torch._foreach_add(scales, eps))
        torch._foreach_mul_(steps, self._of_seeds(self.lr / bias1))
        held = [*self.parameters, *self._means, *self._squares]
        moved = torch._foreach_sub(self.parameters, steps)
        keep_where(~self._going, held, [*moved, *means, *squares])

    def _of_seeds(self, numbers: Tensor) -> list[Tensor]:
        """Returns numbers `(S,)` in the dimensions of every parameter."""
        return [numbers.view(-1, *[1] * (p.ndim - 1)) for p in self.parameters]


@torch.no_grad()
def keep_where(chosen: Tensor, parameters: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Leaves parameters `(S, ...)` where `chosen` `(S,)` is true and takes the others elsewhere."""
    for p, other in zip(parameters, others, strict=True):
        torch.where(chosen.view(-1, *[1] * (p.ndim - 1)), p, other, out=p)


def in_pieces(of_rows: Callable[[slice], Tensor], size: int, piece: int) -> Tensor:
    """Calls `of_rows` with a slice at a time and joins what it returns along the last axis."""
    return torch.cat([of_rows(slice(i, min(i + piece, size))) for i in range(0, size, piece)], -1)


def combined(cfg: Any, rewards: Tensor) -> Tensor:
    """Returns what a policy gets of the members' rewards, `(S, M, N)` to `(S, N)`.

    `cfg` has `ensemble`, `mean` or a kind of `pessimistic`, and `penalty`.
    """
    if cfg.ensemble == "mean":
        return rewards.mean(1)
    return pessimistic(rewards, cfg.ensemble, cfg.penalty)


def pessimistic(rewards: Tensor, kind: str, penalty: float) -> Tensor:
    """Returns rewards that an optimiser cannot push where the members disagree, `(S, M, N)` to `(S, N)`.

    Coste et al. 2024 (arXiv:2310.02743): `worst` is the least member (WCO), `uncertainty` the mean less
    `penalty` times the variance (UWO). Comparisons leave the offset of each member open, so that each first
    gets mean 0 over the N rows, and all together standard deviation 1.
    """
    rewards = rewards - rewards.mean(-1, keepdim=True)
    rewards = rewards / rewards.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-8)
    if kind == "worst":
        return rewards.amin(1)
    return rewards.mean(1) - penalty * rewards.var(1, correction=0)


def ensemble_mean(rewards: Tensor, normalize: bool) -> Tensor:
    """Returns the mean over members, `(S, M, N)` to `(S, N)`.

    With `normalize`, each member's rewards first get mean 0 and (population) deviation 1 over all rows,
    so that no member counts for more because its scale is larger (DTR, section on ensemble normalisation).
    """
    if normalize:
        rewards = rewards - rewards.mean(-1, keepdim=True)
        rewards = rewards / rewards.square().mean(-1, keepdim=True).sqrt()
    return rewards.mean(1)
