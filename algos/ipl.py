"""Inverse Preference Learning (Hejna and Sadigh 2023, arXiv:2305.15363).

Preferences between segments train a critic directly, with no reward network: whatever Q is, the inverse
Bellman operator names the reward that it is optimal for,

    r_Q(s, a) = Q(s, a) - gamma V(s'),

so this implicit reward is put into the Bradley-Terry model of a preference, and regularised,

    L(Q) = E[ -log P(the preferred segment) ] + lambda E[ r_Q(s, a)^2 ],
    P(second preferred) = sigmoid( sum_t r_Q of the second - sum_t r_Q of the first ).

V and the policy are those of an offline algorithm of one's choice; here IQL's, or AWAC's. The task's dataset,
whose rewards are not read, has half of every mean but the first; `replay=false`: comparisons alone.

    python algos/ipl.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=ipl task=d4rl/hopper-medium-replay-v2 seeds=5

The authors' code is jhejna/inverse-preference-learning at 8037b84; the paper was not at hand, so the
equations are our reading of that code.

Differences, each with its reason:
 1. The last step of a crop is left out of everything but as the state before it looks to: L steps give
    L - 1 transitions (authors).
 2. An end of the episode inside a segment does not cut V(s'): comparisons know no terminals (authors).
    In the dataset beside them it does.
 3. Comparisons are drawn with replacement; the authors walk through a permutation. All segments of a
    batch are cropped alike (authors), but here the last possible start is drawn as well.
 4. Policy and critic share one gradient call after the value's step; in the authors' code the critic
    steps first, but nothing that the policy's loss reads has changed by then.
 5. The authors keep a moving average of all networks and read the critics' alone: only that is kept.
 6. V(s') is clipped to 1 / (lambda (1 - gamma)) everywhere; the authors divide by one minus the
    transition's own discount, which differs at terminals only, where V(s') is multiplied by 0.
 7. `form=xql` is the first algorithm of the paper, but not in the authors' code: Gumbel regression in
    place of the expectile, in the form that we know from XQL (Garg et al. 2023, arXiv:2301.02328);
    `gumbel_scale` and `gumbel_limit` are ours.
 8. `form=awac` takes the configuration's critic targets as a mean (`min_target=false`), although the
    class of the authors' code prefers the smaller one.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, require, within
from corerl.nn import compile, networks, optim, transformer
from corerl.nn.acting import PolicyActing
from corerl.nn.critics import Critics, StateValue, expectile_loss
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import unsquashed
from corerl.preferences import loading
from corerl.preferences.buffer import PairBuffer, Pairs, transitions
from corerl.preferences.reward_models import in_pieces, preference_loss
from corerl.preferences.sources import Preferences
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config(MLPSettings):
    name: str = "ipl"
    label: str = "IPL"

    form: str = one_of("iql", "awac", "xql")  # base method: iql | awac | xql (ours)
    chi2: float = at_least(0, 0.5)  # lambda, weight of the squared implicit rewards
    expectile: float = within(0.7, "(0, 1)")  # V is this expectile of the data's Q (form=iql)
    temperature: float = positive(1 / 3)  # actions of the data weigh exp(advantage / temperature)
    max_weight: float = positive(100.0)  # largest weight of a sample in the policy's loss
    target_clipping: bool = True  # clips |V(s')| at 1 / (chi2 (1 - discount)), except if form=awac
    replay: bool = True  # also learns from the task's dataset (false: comparisons alone)
    replay_weight: float = within(  # dataset's share of the losses (rest: comparisons)
        0.5, "[0, 1]"
    )
    min_target: bool = False  # V(s') is the smaller critic's Q, not the mean (form=awac)
    gumbel_scale: float = positive(1.0)  # Q - V is divided by this temperature (form=xql)
    gumbel_limit: float = positive(7.0)  # (Q - V) / gumbel_scale is clipped above this (form=xql)
    discount: float = within(0.99, "[0, 1)")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update

    lr: float = positive(3e-4)  # learning rate of all networks
    pairs: int = positive(8)  # comparisons in a batch
    crop: int | None = positive(64)  # steps read of each segment in a batch (null: all)
    preferences: Preferences = group(Preferences)
    batch_size: int = positive(256)  # transitions of the dataset in a batch
    critics: int = positive(2)  # number of critics
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    dropout: float = within(0.0, "[0, 1)")  # dropout rate in the policy
    log_std_min: float = -5.0
    log_std_max: float = 2.0
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)

    def __post_init__(self):
        super().__post_init__()
        require(
            self.dropout == 0 or self.form != "awac",
            f"algo.form=awac has no dropout. Leave algo.dropout={self.dropout} out",
        )
        require(
            self.chi2 > 0 or not self.target_clipping or self.form == "awac",
            f"algo.chi2={self.chi2} must be positive. Only algo.target_clipping=false allows 0",
        )
        reason = "IPL learns from comparisons, not from the dataset's rewards"
        loading.refuse(self.data, *loading.REWARDS, reason=reason)
        loading.check_crop(self.crop, self.preferences, least=2)


class Points(NamedTuple):
    """Transitions of S seeds: N = B * 2 * `steps` of the comparisons, then those of the dataset."""

    batch: Batch  # (S, N, ...), whose rewards have no meaning
    labels: Tensor  # (S, B), the probability that the second segment is preferred
    steps: int

    @classmethod
    def of(cls, pairs: Pairs, replay: Batch | None) -> "Points":
        """Joins all transitions of an update, for one pass through the networks."""
        batch = transitions(pairs)
        if replay is not None:
            batch = Batch(*(torch.cat(both, 1) for both in zip(batch, replay, strict=True)))
        return cls(batch, pairs.labels, pairs.actions.shape[3] - 1)


class IPLNoise(NamedTuple):
    """Standard normal draws for form=awac, `(S, N, A)` each."""

    next_states: Tensor
    states: Tensor


class IPL(PolicyActing):
    """IPL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        options = {"init": networks.orthogonal(1.0)} | cfg.mlp_options
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        self.critic = Critics([O, A, *hidden], rngs, cfg.critics, **options).to(device)
        self.policy = unsquashed(cfg, spec, **options)
        self.target = optim.target_of(self.critic)
        self.normalizer = spec.normalizer
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        pi, q = self.policy_optimizer, self.critic_optimizer
        if cfg.form == "awac":
            self._critic_step = GradientStep(self._awac_critic_loss, q, spec.mode)
            self._policy_step = GradientStep(self._awac_policy_loss, pi, spec.mode)
            return
        self.value = StateValue([O, *hidden], rngs, **options).to(device)
        self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        self._value_step = GradientStep(self.value_loss, self.value_optimizer, spec.mode)
        self._policy_and_critic_step = GradientStep(
            self._policy_and_critic_loss, (pi, q), spec.mode
        )

    # Losses, each (S,). What is per point is (..., N).

    def value_loss(self, points: Points) -> tuple[Tensor, dict[str, Tensor]]:
        """Fits the expectile (IQL, eq. 5) or Gumbel regression of the smallest target Q."""
        with torch.no_grad():
            target_q = self.target(points.batch.observations, points.batch.actions).amin(1)
        difference = target_q - self.value(points.batch.observations)
        if self.cfg.form == "xql":
            z = (difference / self.cfg.gumbel_scale).clamp(max=self.cfg.gumbel_limit)
            per_point = torch.exp(z) - z - 1
        else:
            per_point = expectile_loss(difference, self.cfg.expectile)
        loss = self._mean(per_point, points)
        metrics = {"value_loss": loss, "advantage": difference.mean(-1), "target_q": target_q}
        return loss, metrics

    def critic_loss(self, points: Points, next_value: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the comparisons' cross-entropy under the implicit rewards, and lambda times their squares."""
        q = self.critic(points.batch.observations, points.batch.actions)
        discount = self.cfg.discount * (1 - points.batch.terminated)
        rewards = q - (discount * next_value)[:, None]
        of_segments = self._compared(rewards, points).unflatten(-1, (-1, 2, points.steps)).sum(-1)
        entropy, accuracy = preference_loss(of_segments, points.labels[:, None])
        penalty = self.cfg.chi2 * self._mean(rewards.square(), points)
        metrics = {
            "preference_loss": entropy.mean(1),
            "chi2_loss": penalty.mean(1),
            "accuracy": accuracy.mean(1),
            "reward": rewards.mean((1, 2)),
            "q": q.mean(1),
        }
        return (entropy + penalty).mean(1), metrics

    def policy_loss(self, points: Points, advantage: Tensor, keys: Tensor | None) -> Tensor:
        """Regresses towards the data's actions, weighted by exp(advantage / temperature)."""
        weight = torch.exp(advantage / self.cfg.temperature).clamp(max=self.cfg.max_weight)
        shape = (advantage.shape[1], self.cfg.hidden_width)
        keep = transformer.multipliers(keys, shape, self.cfg.dropout)
        mean = self.policy(points.batch.observations, keep)
        return self._mean(-weight * self.policy.log_prob_given(mean, points.batch.actions), points)

    def _policy_and_critic_loss(self, points: Points, target_q: Tensor, keys: Tensor | None):
        with torch.no_grad():
            advantage = target_q - self.value(points.batch.observations)
            next_value = self.value(points.batch.next_observations)
            if self.cfg.target_clipping:
                limit = 1 / (self.cfg.chi2 * (1 - self.cfg.discount))
                next_value = next_value.clamp(-limit, limit)
        policy_loss = self.policy_loss(points, advantage, keys)
        critic_loss, metrics = self.critic_loss(points, next_value)
        return policy_loss + critic_loss, metrics | {"policy_loss": policy_loss}

    def _awac_critic_loss(self, points: Points, noise: Tensor):
        """Computes `critic_loss` with V(s') of the target critics at one sample of the policy there."""
        with torch.no_grad():
            states = points.batch.next_observations
            next_q = self.target(states, self._sample(states, noise))
            next_value = next_q.amin(1) if self.cfg.min_target else next_q.mean(1)
        return self.critic_loss(points, next_value)

    def _awac_policy_loss(self, points: Points, q: Tensor, noise: Tensor):
        """Computes `policy_loss` with `q`, of before the critics' step, over the new Q of one sample."""
        with torch.no_grad():
            states = points.batch.observations
            advantage = q - self.critic(states, self._sample(states, noise)).mean(1)
        loss = self.policy_loss(points, advantage, None)
        return loss, {"policy_loss": loss, "advantage": advantage.mean(-1)}

    def _compared(self, per_point: Tensor, points: Points) -> Tensor:
        return per_point[..., : points.labels.shape[1] * 2 * points.steps]

    def _mean(self, per_point: Tensor, points: Points) -> Tensor:
        """Averages over comparisons and over the dataset, then the two: `(..., N)` to `(...)`."""
        compared = self._compared(per_point, points)
        if compared.shape == per_point.shape:
            return compared.mean(-1)
        replayed = per_point[..., compared.shape[-1] :]
        return torch.lerp(compared.mean(-1), replayed.mean(-1), self.cfg.replay_weight)

    def _sample(self, observations: Tensor, noise: Tensor) -> Tensor:
        return self.policy(observations) + self.policy.std * noise

    def update(
        self, pairs: Pairs, replay: Batch | None = None, draws: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Takes one step of everything.

        `draws`: dropout keys `(S, layers)`, or for form=awac normal draws `(S, 2, N, A)`.
        """
        points = Points.of(pairs, replay)
        if self.cfg.form == "awac":
            metrics = self._update_awac(points, IPLNoise(*draws.unbind(1)))
        else:
            metrics = self._update_iql(points, draws)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | {"q": metrics["q"].mean(-1)}

    def _update_iql(self, points: Points, keys: Tensor | None) -> dict[str, Tensor]:
        metrics = self._value_step(points)
        target_q = metrics["target_q"]
        metrics |= self._policy_and_critic_step(points, target_q, keys)
        return metrics | {"target_q": target_q.mean(-1)}

    def _update_awac(self, points: Points, noise: IPLNoise) -> dict[str, Tensor]:
        metrics = self._critic_step(points, noise.next_states)
        return metrics | self._policy_step(points, metrics["q"], noise.states)

    @torch.no_grad()
    def implied_rewards(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        next_observations: np.ndarray,
        terminated: np.ndarray,
    ) -> Tensor:
        """Returns Q(s, a) - discount V(s') at normalised rows `(N, ...)`, mean over critics, `(S, N)`.

        With form=awac, V(s') is Q of the policy's mean action there.
        """
        rows, like = (observations, actions, next_observations, terminated), self.policy.log_std

        def of_rows(piece: slice) -> Tensor:
            parts = (torch.as_tensor(x[piece]).to(like) for x in rows)
            s, a, following, over = (x.expand(len(like), *x.shape) for x in parts)
            if self.cfg.form == "awac":
                value = self.critic(following, self.policy(following)).mean(1)
            else:
                value = self.value(following)
            return self.critic(s, a).mean(1) - self.cfg.discount * (1 - over) * value

        return in_pieces(of_rows, len(actions), 16_384).cpu()


build = IPL


def train(cfg: Config, run: Run) -> None:
    compared, buffer, normalizer = loading.load(cfg, run)
    pairs = PairBuffer(compared, run.seeds, cfg.pairs, run.device, cfg.crop, crop_alike=True)
    agent = IPL(cfg, run.spec(pairs, normalizer))
    draws = None
    if cfg.form == "awac":
        rows = cfg.pairs * 2 * (pairs.length - 1) + cfg.batch_size * cfg.replay
        draws = run.normal("noise", 2, rows, pairs.action_dim, block=16)
    elif cfg.dropout:
        draws = transformer.dropout_keys(run.seeds, cfg.hidden_layers, run.device)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, pairs=pairs, buffer=buffer, draws=draws):
        metrics = update(pairs.sample(), buffer and buffer.sample(), draws and draws.next())
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
