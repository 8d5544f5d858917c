"""RO2O: robust offline-to-online learning (Wen et al. 2024, arXiv:2309.16973).

SAC-N with three more terms around the states of a batch, each over n states s~ within +-radius of s:

    policy   max over s~ of KL(pi(s) || pi(s~)) + KL(pi(s~) || pi(s))
    value    max over s~ of the mean over critics of 0.8 max(d, 0)^2 + 0.2 min(d, 0)^2, d = Q(s~, a) - Q(s, a)
    unseen   mean over s~, a~ ~ pi(s~), of (Q_i(s~, a~) - sg[Q_i(s~, a~) - k std_i Q_i(s~, a~)])^2

The same loss learns offline and online, so that the switch costs nothing.

    python algos/ro2o.py task=corerl/pendulum steps=5000 algo.perturbations=5 seeds=3
    corerl train algo=ro2o_finetune task=d4rl/hopper-medium-v2 seeds=5

With the three weights at 0 it is SAC-N (`algo=sac_n`), bit for bit, and `eta` adds EDAC's penalty.

Differences, each with its reason:
 1. The authors' fine-tuning script (BattleWen/RO2O at d066702) computes the three terms and steps without
    them. The paper fine-tunes with them, and so does the default. `smooth_online=false` is the script.
 2. The n perturbations of an update are those of all its states, as in the code.
 3. The weight of `value` is 1e-4 in the code, and no setting there.
 4. k falls with every update on the data, from `pessimism` to `pessimism_min`. Online it is the latter.
 5. AntMaze's variants, with cloning and other actors, are left out.
 6. Order of steps and initial weights are CORL's SAC-N (1 and 6 in algos/edac.py), as in the code.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.algos import edac
from corerl.algos.edac import EDAC, EDACNoise
from corerl.buffers.replay import Batch
from corerl.config import at_least, group, positive, require, within
from corerl.nn import compile, optim
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Online, Phases, check_warmup
from corerl.training.run import Run


@dataclass
class Config(edac.Config, FineTuning):
    name: str = "ro2o"
    label: str = "RO2O"

    eta: float = at_least(0, 0.0)  # weight of EDAC's penalty
    policy_weight: float = at_least(0, 1.0)  # weight of the policy's smoothness loss
    value_weight: float = at_least(0, 1e-4)  # weight of the critics' smoothness loss
    unseen_weight: float = at_least(0, 0.1)  # weight of the pessimism loss at unseen actions
    policy_radius: float = at_least(0, 0.01)  # radius of state perturbations for the policy's loss
    value_radius: float = at_least(0, 0.01)  # radius of state perturbations for the critics' loss
    unseen_radius: float = at_least(0, 0.01)  # radius of state perturbations for unseen actions
    perturbations: int = positive(20)  # n, number of perturbed states per state
    rise_weight: float = within(  # value smoothness weighs rises of Q by this, falls by 1 - this
        0.8, "[0, 1]"
    )
    pessimism: float = at_least(  # first k, the standard deviations taken off Q at unseen actions
        0, 1.0
    )
    pessimism_min: float = at_least(0, 0.1)  # smallest k, also used in online training
    pessimism_decay: float = at_least(0, 5e-7)  # decrease of k at every update on the data
    smooth_online: bool = True  # keeps the three extra losses online (false: the authors' script)
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, normalize_states=True)
    online: Online = group(Online, warmup_steps=2_500, offline_ratio=0.0, capacity=250_000)

    def __post_init__(self):
        super().__post_init__()
        check_warmup(self)
        require(
            self.order == "alpha_actor_critic",
            f"algo.order={self.order} is for EDAC only. Set algo.order=alpha_actor_critic",
        )
        require(
            self.critics > 1 or self.unseen_weight == 0,
            f"algo.critics={self.critics} must be at least 2, because the penalty needs critics "
            "that differ. With algo.unseen_weight=0 (no penalty) one critic is enough",
        )
        require(
            self.pessimism_min <= self.pessimism,
            f"algo.pessimism_min={self.pessimism_min} must not be above algo.pessimism={self.pessimism}",
        )


class Draws(NamedTuple):
    """What perturbs a batch's states."""

    offsets: Tensor  # (S, 3, n, O), uniform on [0, 1), for policy, values and unseen actions
    noise: Tensor  # (S, n B, A), standard normal, for unseen actions
    pessimism: Tensor  # (), k


class RO2O(EDAC):
    """RO2O agents of S seeds, trained together."""

    def policy_loss(self, batch: Batch, noise: Tensor, draws: Draws | None):
        """Adds the policy's smoothness to SAC-N's loss."""
        loss, metrics = super().policy_loss(batch, noise)
        if draws is None or not self.cfg.policy_weight:
            return loss, metrics
        roughness = self.policy_roughness(batch.observations, draws.offsets[:, 0])
        return loss + self.cfg.policy_weight * roughness, metrics | {"policy_roughness": roughness}

    def critic_loss(self, batch: Batch, noise: Tensor, draws: Draws | None):
        """Adds the values' smoothness, and pessimism at unseen actions, to SAC-N's loss."""
        loss, metrics = super().critic_loss(batch, noise)
        if draws is None:
            return loss, metrics
        if self.cfg.value_weight:
            roughness = self.value_roughness(batch, draws.offsets[:, 1])
            loss = loss + self.cfg.value_weight * roughness
            metrics = metrics | {"value_roughness": roughness}
        if self.cfg.unseen_weight:
            unseen = self.unseen_loss(batch.observations, draws)
            loss = loss + self.cfg.unseen_weight * unseen
            metrics = metrics | {"unseen_loss": unseen}
        return loss, metrics

    def policy_roughness(self, observations: Tensor, offsets: Tensor) -> Tensor:
        """Averages the largest symmetric KL among offsets `(S, n, O)`, before the tanh: `(S,)`."""
        mean, log_std = (x[:, None] for x in self.policy(observations))
        near = self.policy(perturbed(observations, offsets, self.cfg.policy_radius))
        near_mean, near_log_std = (x.unflatten(1, (offsets.shape[1], -1)) for x in near)
        squared = (mean - near_mean).square()
        variance, near_variance = (torch.exp(2 * x) for x in (log_std, near_log_std))
        ratios = (variance + squared) / near_variance + (near_variance + squared) / variance
        return (ratios / 2 - 1).sum(-1).amax(1).mean(-1)

    def value_roughness(self, batch: Batch, offsets: Tensor) -> Tensor:
        """Averages the largest asymmetric change of the values among offsets `(S, n, O)`: `(S,)`."""
        near = perturbed(batch.observations, offsets, self.cfg.value_radius)
        count = offsets.shape[1]
        q_near = self.critic(near, batch.actions.repeat(1, count, 1)).unflatten(2, (count, -1))
        change = q_near - self.critic(batch.observations, batch.actions)[:, :, None]
        rises, falls = F.relu(change).square(), F.relu(-change).square()
        weight = self.cfg.rise_weight
        return (weight * rises + (1 - weight) * falls).mean(1).amax(1).mean(-1)

    def unseen_loss(self, observations: Tensor, draws: Draws) -> Tensor:
        """Pulls every critic k standard deviations of the ensemble down: `(S,)`."""
        near = perturbed(observations, draws.offsets[:, 2], self.cfg.unseen_radius)
        with torch.no_grad():
            actions = self.policy.draw(near, draws.noise)
        q = self.critic(near, actions)
        target = (q - draws.pessimism * q.std(1, keepdim=True)).detach()
        return (q - target).square().mean((1, 2))

    def update(
        self, batch: Batch, noise: EDACNoise, draws: Draws | None = None
    ) -> dict[str, Tensor]:
        """Takes one step of everything. Without draws it is SAC-N's."""
        metrics = self._alpha_step(batch, noise.temperature)
        metrics |= self._policy_step(batch, noise.actions, draws)
        metrics |= self._critic_step(batch, noise.next_actions, draws)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics


def perturbed(observations: Tensor, offsets: Tensor, radius: float) -> Tensor:
    """Moves states `(S, B, O)` by each of the offsets `(S, n, O)`, uniform on [0, 1): `(S, n B, O)`."""
    near = observations[:, None] + radius * (2 * offsets[:, :, None] - 1)
    return near.flatten(1, 2)


build = RO2O


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = RO2O(cfg, run.spec(buffer, normalizer))
    noise = run.normal("noise", 3, cfg.batch_size, buffer.action_dim)
    offsets = run.uniform("perturbations", 3, cfg.perturbations, buffer.observation_dim)
    unseen = run.normal("unseen", cfg.perturbations * cfg.batch_size, buffer.action_dim, block=32)
    phases = Phases(cfg, run, buffer, agent)
    pretrain = finetune = compile.captured(agent.update, run.mode)
    if phases.parts:  # which may have other inputs
        finetune = compile.captured(agent.update, run.mode)
    streams = {"noise": noise, "offsets": offsets, "unseen": unseen}
    for step in run.steps(agent=agent, buffer=buffer, **streams, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            online, draws = phases.online(step), None
            if cfg.smooth_online or not online:
                k = cfg.pessimism - cfg.pessimism_decay * (step - 1)
                k = cfg.pessimism_min if online else max(k, cfg.pessimism_min)
                # Made on the device: a copy to it would wait there for the update before.
                k = torch.full((), k, device=run.device)
                draws = Draws(offsets.next(), unseen.next(), k)
            update = finetune if online else pretrain
            metrics = update(phases.sample(step), EDACNoise(*noise.next().unbind(1)), draws)
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
