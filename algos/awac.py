"""AWAC: Advantage Weighted Actor Critic (Nair, Gupta, Dalal and Levine 2020, arXiv:2006.09359).

A critic of the current policy, bootstrapped on the policy's own actions, and a policy regressed to the
data's actions with weight exp(advantage / lambda), which keeps it near the data (Algorithm 1).

    python algos/awac.py task=corerl/pendulum steps=20000 seeds=3
    python algos/awac.py task=corerl/cartpole steps=5000 seeds=3
    corerl train algo=awac task=d4rl/hopper-medium-v2 seeds=10
    corerl train algo=awac task=d4rl/antmaze-umaze-v2 steps=2000000 \
        algo.phase=both algo.online.pretrain_steps=1000000

The default is CORL's, which made the published D4RL v2 scores; the paper's own are on other data.

Differences, each with its reason:
 1. The weights are clipped at 100 (`max_weight`, CORL); the authors' code may instead normalise
    them over the batch.
 2. The policy is a Gaussian that is not squashed, with one log-std for all states; its samples are
    clipped to the action bounds before the critics see them (CORL).
 3. The value of a state is min Q at one sample of the policy (CORL).
 4. The critics step first, and the policy's advantages come from the stepped critics (CORL).
 5. The evaluated mean is clipped to the action bounds; CORL leaves that to the simulator, whose control
    cost then counts the part beyond them.
 6. Fine-tuning changes nothing but the data: actions are samples, and the dataset is the replay's
    beginning (paper and CORL).
 7. Where actions are discrete, critics read them one-hot and the policy is categorical.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, positive, within
from corerl.nn import compile, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.critics import Critics, regression
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import PolicyNoise, unsquashed
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Phases
from corerl.training.run import Run


@dataclass
class Config(MLPSettings, FineTuning):
    actions = "any"
    name: str = "awac"
    label: str = "AWAC"

    temperature: float = positive(1.0)  # lambda in the policy's weights exp(advantage / lambda)
    max_weight: float = positive(100.0)  # largest weight of a sample in the policy's loss
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update

    lr: float = positive(3e-4)  # learning rate of policy and critics
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 3)
    hidden_width: int = positive(256)
    log_std_min: float = -20.0
    log_std_max: float = 2.0
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, normalize_states=True)


class AWAC(PolicyActing):
    """AWAC agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        self.policy = unsquashed(cfg, spec, bound=lambda mean: mean, **cfg.mlp_options)
        self.critic = Critics([O, A, *hidden], rngs, **cfg.mlp_options).to(device)
        self.target = optim.target_of(self.critic)
        self.normalizer = spec.normalizer
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self._policy_step = GradientStep(self.policy_loss, self.policy_optimizer, spec.mode)
        self._critic_step = GradientStep(self.critic_loss, self.critic_optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...), noise is (S, B, A); each loss is (S,).

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses both critics towards r + discount * min Q'(s', a'), a' ~ pi(.|s')."""
        with torch.no_grad():
            next_actions = self._sample(batch.next_observations, noise)
            next_q = self.target(batch.next_observations, next_actions).amin(1)
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_q
        return regression(self.critic(batch.observations, batch.actions), y)

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighs -log pi(a|s) by min(exp(A / lambda), 100), A = min Q(s, a) - min Q(s, pi(s))."""
        with torch.no_grad():
            actions = self._sample(batch.observations, noise)
            value = self.critic(batch.observations, actions).amin(1)
            q = self.critic(batch.observations, batch.actions).amin(1)
            advantage = q - value
            weight = torch.exp(advantage / self.cfg.temperature).clamp(max=self.cfg.max_weight)
        log_prob = self.policy.log_prob(batch.observations, batch.actions)
        loss = -(weight * log_prob).mean(-1)
        return loss, {"policy_loss": loss, "advantage": advantage.mean(-1)}

    def _sample(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Samples actions within the bounds. Discrete ones as one-hot vectors."""
        return self.policy.draw(observations, noise)

    def update(self, batch: Batch, noise: PolicyNoise) -> dict[str, Tensor]:
        """Takes one step of the critics, then one of the policy."""
        metrics = self._critic_step(batch, noise.next_actions)
        metrics |= self._policy_step(batch, noise.actions)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics


build = AWAC


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = AWAC(cfg, run.spec(buffer, normalizer))
    noise = run.normal("noise", 2, cfg.batch_size, buffer.action_dim)
    phases = Phases(cfg, run, buffer, agent)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, noise=noise, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            metrics = update(phases.sample(step), PolicyNoise(*noise.next().unbind(1)))
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
