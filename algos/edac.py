"""EDAC and SAC-N (An, Moon, Kim and Song 2021, arXiv:2110.01548).

SAC whose target is the minimum over N critics, which punishes actions on which they disagree (SAC-N).
EDAC needs fewer of them, for it also drives their gradients with respect to the action apart (eq. 8).

    python algos/edac.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=edac task=d4rl/hopper-medium-v2 seeds=4
    corerl train algo=edac table=sac_n task=d4rl/hopper-medium-v2 seeds=4

`eta=0` is SAC-N. The default is CORL's, which made the published scores on v2 data; a Gym run is 3M
updates.

Differences, each with its reason:
 1. Temperature, then actor, then critics, each looking at what was just stepped and at a fresh sample
    (CORL). The authors' code takes all gradients at the start of the step, from one sample of the
    policy: `order=joint`.
 2. The log-density of a squashed action is exact; both codes add 1e-6 inside the logarithm.
 3. Where an action gradient is exactly 0 its direction is 0, as torch's norm has it.
 4. The gradient of Q with respect to the action is written out through the layers, so that the
    penalty's own gradient needs one backward pass; the sum over pairs is |sum g|^2 - sum |g|^2. The
    numbers are the same.
 5. On Adroit the authors train 200k updates with policy_lr=3e-5 on standardised rewards (pen-cloned with
    a maximum over next actions too); CORL does none of this, and its Adroit scores are low.
 6. `init=corl` draws the critics' hidden weights, the first layer's too, on +-1/sqrt(width): CORL takes
    the fan-in from the wrong axis of the stacked weights, and its runs began so. `init=official` takes
    the right one.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.nn import compile, networks, optim, policies
from corerl.nn.learner import Stateful
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "edac"
    label: str = "EDAC"

    critics: int = 10  # N
    eta: float = 1.0  # weight of the diversity penalty; 0 is SAC-N
    discount: float = 0.99
    polyak: float = 0.005  # share of the new critics in their targets, every update

    policy_lr: float = 3e-4
    critic_lr: float = 3e-4
    alpha_lr: float = 3e-4  # of the temperature
    batch_size: int = 256
    hidden_layers: int = 3
    hidden_width: int = 256
    log_std_min: float = -5.0
    log_std_max: float = 2.0
    order: str = "alpha_actor_critic"  # alpha_actor_critic (CORL) | joint (authors)
    init: str = "corl"  # corl | official, of the critics
    data: preprocessing.Preprocess = field(default_factory=preprocessing.Preprocess)

    def __post_init__(self):
        least = 2 if self.eta else 1
        require(self.eta >= 0, f"algo.eta={self.eta} must not be negative")
        require(self.critics >= least, f"algo.critics={self.critics} must be at least {least}")
        choices = {"order": ("alpha_actor_critic", "joint"), "init": ("corl", "official")}
        for name, known in choices.items():
            value = getattr(self, name)
            require(value in known, f"algo.{name}={value} is not one of {', '.join(known)}")


class Ensemble(networks.MLP):
    """N critics: inputs `(S, 1, B, O + A)` to `(S, N, B)`."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)

    def with_action_gradient(self, x: Tensor, action_dim: int) -> tuple[Tensor, Tensor]:
        """Also the gradient with respect to the action, `(S, N, B, A)`, itself differentiable.

        The chain rule backwards through the layers: a ReLU passes what it passed forwards.
        """
        passed = []
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
            passed.append((x > 0).to(x.dtype))
        q = self.layers[-1](x).squeeze(-1)
        gradient = self.layers[-1].weight.mT
        for layer, gate in zip(self.layers[-2::-1], passed[::-1], strict=True):
            weight = (
                layer.weight if layer is not self.layers[0] else layer.weight[:, :, -action_dim:]
            )
            gradient = (gradient * gate) @ weight.mT
        return q, gradient


class EDAC(Stateful):
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed."""

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        normalizer: networks.Normalizer | None = None,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg = cfg
        hidden, seeds = [cfg.hidden_width] * cfg.hidden_layers, len(rngs)
        policy = policies.TanhGaussian(
            [observation_dim, *hidden, action_dim],
            (seeds,),
            rngs,
            log_std_min=cfg.log_std_min,
            log_std_max=cfg.log_std_max,
            init=networks.uniform(bias=0.1),
            output_init=networks.uniform(1e-3),
        )
        critic = Ensemble(
            [observation_dim + action_dim, *hidden, 1],
            (seeds, cfg.critics),
            rngs,
            init=networks.uniform(cfg.hidden_width**-0.5 if cfg.init == "corl" else None, bias=0.1),
            output_init=networks.uniform(3e-3),
        )
        self.policy, self.critic = policy.to(device), critic.to(device)
        self.target = optim.target_of(self.critic)
        self.log_alpha = networks.Scalar(0.0, seeds).to(device)
        self.normalizer = normalizer or nn.Identity()
        self.target_entropy = -float(action_dim)
        self.alpha_optimizer = optim.Adam(self.log_alpha.parameters(), cfg.alpha_lr)
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.policy_lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        alpha, pi, q = (o.parameters for o in self._optimizers())
        self._alpha_gradients = compile.gradients(self.alpha_loss, alpha, mode)
        self._policy_gradients = compile.gradients(self.policy_loss, pi, mode)
        self._critic_gradients = compile.gradients(self.critic_loss, q, mode)

    def _optimizers(self) -> tuple[optim.Adam, optim.Adam, optim.Adam]:
        return self.alpha_optimizer, self.policy_optimizer, self.critic_optimizer

    # Losses. Batch fields are (S, B, ...), noise is (S, B, A); each loss is (S,).

    def alpha_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """-log alpha * (log pi + target entropy), the target being minus the action dimension."""
        with torch.no_grad():
            log_pi = self.policy.sample(batch.observations, noise)[1]
        loss = -self.log_alpha() * (log_pi + self.target_entropy).mean(-1)
        return loss, {"alpha": torch.exp(self.log_alpha()), "entropy": -log_pi.mean(-1)}

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """alpha * log pi(a|s) - min_i Q_i(s, a) at a ~ pi(.|s)."""
        actions, log_pi = self.policy.sample(batch.observations, noise)
        q = self.critic(torch.cat([batch.observations, actions], -1)[:, None])
        alpha = torch.exp(self.log_alpha()).detach()[:, None]
        loss = (alpha * log_pi - q.amin(1)).mean(-1)
        return loss, {"policy_loss": loss, "q_std": q.detach().std(1, correction=0).mean(-1)}

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Every critic towards the soft minimum over all targets, and eta * diversity (eq. 8)."""
        cfg = self.cfg
        with torch.no_grad():
            next_actions, log_pi = self.policy.sample(batch.next_observations, noise)
            next_q = self.target(torch.cat([batch.next_observations, next_actions], -1)[:, None])
            next_value = next_q.amin(1) - torch.exp(self.log_alpha())[:, None] * log_pi
            y = batch.rewards + cfg.discount * (1 - batch.terminated) * next_value
        inputs = torch.cat([batch.observations, batch.actions], -1)[:, None]
        if cfg.eta == 0:
            q, diversity = self.critic(inputs), torch.zeros_like(y[:, 0])
        else:
            q, gradient = self.critic.with_action_gradient(inputs, batch.actions.shape[-1])
            diversity = self.diversity(gradient)
        bellman = (q - y[:, None]).square().mean(-1).sum(1)
        metrics = {"bellman_loss": bellman, "diversity": diversity, "q": q.mean((1, 2))}
        return bellman + cfg.eta * diversity, metrics

    @staticmethod
    def diversity(gradient: Tensor) -> Tensor:
        """Mean over the batch of sum_{i != j} <g_i, g_j> / (N - 1), g_i of unit length: `(S,)`."""
        length = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        unit = gradient / (length + 1e-10)
        pairs = unit.sum(1).square().sum(-1) - unit.square().sum((1, 3))
        return pairs.mean(-1) / (gradient.shape[1] - 1)

    def update(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """One step of everything. `noise` (S, 3, B, A): for temperature, actor and next states."""
        if self.cfg.order == "joint":
            alpha, metrics = self._alpha_gradients(batch, noise[:, 1])
            policy, more = self._policy_gradients(batch, noise[:, 1])
            critic, most = self._critic_gradients(batch, noise[:, 2])
            optim.step(self._optimizers(), [*alpha, *policy, *critic])
        else:
            grads, metrics = self._alpha_gradients(batch, noise[:, 0])
            self.alpha_optimizer.step(grads)
            grads, more = self._policy_gradients(batch, noise[:, 1])
            self.policy_optimizer.step(grads)
            grads, most = self._critic_gradients(batch, noise[:, 2])
            self.critic_optimizer.step(grads)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | more | most

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """tanh of the mean at raw observations, `(S, n, O) -> (S, n, A)`."""
        return self.policy.mode(self.normalizer(observations))


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = EDAC(
        cfg,
        buffer.observation_dim,
        buffer.action_dim,
        run.rngs(),
        normalizer=normalizer,
        device=run.device,
        mode=run.mode,
    )
    shape = (3, cfg.batch_size, buffer.action_dim)
    noise = seeding.normal(run.seeds, "noise", shape, run.device)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, noise=noise):
        metrics = update(buffer.sample(), noise.next())
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
