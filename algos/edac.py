"""EDAC and SAC-N (An, Moon, Kim and Song 2021, arXiv:2110.01548).

SAC whose target is the minimum over N critics, which punishes actions on which they disagree (SAC-N).
EDAC needs fewer of them, for it also drives their gradients with respect to the action apart (eq. 8).

    python algos/edac.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=edac task=d4rl/hopper-medium-v2 seeds=4
    corerl train algo=edac table=sac_n task=d4rl/hopper-medium-v2 seeds=4
    corerl train algo=lb_sac task=d4rl/hopper-medium-v2 seeds=4

`eta=0` is SAC-N. The default is CORL's, which made the published scores on v2 data; a Gym run is 3M
updates.

Differences, each with its reason:
 1. Temperature, then actor, then critics, each looking at what was just stepped and at a fresh sample
    (CORL). The authors' code takes all gradients at the start of the step, from one sample of the
    policy: `order=joint`.
 2. The log-density of a squashed action is exact; both codes add 1e-6 inside the logarithm.
 3. Where an action gradient is exactly 0 its direction is 0, as torch's norm has it.
 4. Where hidden layers are plain ReLUs the gradient of Q with respect to the action is written out
    through them, so that the penalty's own gradient needs one backward pass; the sum over pairs is
    |sum g|^2 - sum |g|^2. The numbers are the same.
 5. On Adroit the authors train 200k updates with policy_lr=3e-5 and alpha_lr=3e-5 on standardised
    rewards (pen-cloned with a maximum over next actions too); CORL does none of this, and its Adroit
    scores are low.
 6. `init=corl` draws the critics' hidden weights, the first layer's too, on +-1/sqrt(width): CORL takes
    the fan-in from the wrong axis of the stacked weights, and its runs began so. `init=official` takes
    the right one there, and the wrong one in the policy, as the authors' code does.
 7. `algo=edac_neorl2` is the NeoRL-2 benchmark's (offlinerl 0.0.2): the policy with the temperature of
    before, from one sample for both, then the critics, each looking at what was stepped
    (`order=critic_last`); no temperature above 1 (`alpha_max`); initial weights of its own.
 8. `algo=lb_sac` is LB-SAC (Nikulin et al. 2022, arXiv:2211.11092): SAC-N on batches of 10,000 rows, with few
    critics and few updates. The rate 1.8e-3 is about 3e-4 * sqrt(10000 / 256). The settings are those of
    CORL's lb_sac.py (tinkoff-ai/CORL at 6afec90). In it every layer of the critics begins as in 6, outputs
    and biases too (`init=lb_sac`). On hopper-medium every hidden layer of the critics has a LayerNorm, whose
    scale and shift all critics share (`critic_layer_norm`). CORL averages the Bellman error over critics,
    ours is the sum. Adam takes the same steps, except for its epsilon. The authors' code
    (tinkoff-ai/lb-sac at 7253267) has 10 critics, not 4, on two medium-replay sets, and 350,000 updates or
    more on all.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.replay import Batch
from corerl.config import added, at_least, group, one_of, positive, require, within
from corerl.nn import compile, networks, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.critics import Critics
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import TanhGaussian
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config(MLPSettings):
    name: str = "edac"
    label: str = "EDAC"

    critics: int = at_least(1, 10)  # N, number of critics
    eta: float = at_least(0, 1.0)  # weight of the diversity penalty (0: SAC-N)
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update

    policy_lr: float = positive(3e-4)
    critic_lr: float = positive(3e-4)
    alpha_lr: float = positive(3e-4)  # learning rate of the temperature
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 3)
    hidden_width: int = positive(256)
    log_std_min: float = -5.0
    log_std_max: float = 2.0
    order: str = one_of(  # alpha_actor_critic (CORL) | joint (authors) | critic_last (NeoRL-2)
        "alpha_actor_critic", "joint", "critic_last"
    )
    alpha_max: float | None = added(positive(None))  # largest temperature (null: none, NeoRL-2: 1)
    critic_layer_norm: bool = added(False)  # LayerNorm in the critics (all share its weights)
    init: str = one_of(  # initial weights, corl | official (the authors') | neorl2 | lb_sac
        "corl", "official", "neorl2", "lb_sac"
    )
    data: preprocessing.Preprocess = group(preprocessing.Preprocess)

    def __post_init__(self):
        super().__post_init__()
        require(
            self.critics > 1 or self.eta == 0,
            f"algo.critics={self.critics} must be at least 2, because EDAC makes critics differ. "
            "With algo.eta=0 (SAC-N) one critic is enough",
        )


class Ensemble(Critics):
    """N critics, also with the gradient of each with respect to the action."""

    def with_action_gradient(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns Q `(S, N, B)`, and its gradient `(S, N, B, A)`, itself differentiable."""
        if self.activation is F.relu and not list(self.norms.parameters()):
            return self._through_relus(observations, actions)
        states, actions = (
            x[:, None].expand(-1, self.layers[0].weight.shape[1], -1, -1)
            for x in (observations, actions)
        )
        actions = actions.detach().requires_grad_()  # of each critic its own, for its own gradient
        q = networks.MLP.forward(self, torch.cat([states, actions], -1)).squeeze(-1)
        (gradient,) = torch.autograd.grad(q.sum(), actions, create_graph=True)
        return q, gradient

    def _through_relus(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Applies the chain rule backwards through the layers: a ReLU passes what it passed forwards."""
        x, action_dim = torch.cat([observations, actions], -1)[:, None], actions.shape[-1]
        passed = []
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
            passed.append((x > 0).to(x.dtype))
        q = self.layers[-1](x).squeeze(-1)
        weights = [layer.weight for layer in self.layers]
        weights[0] = weights[0][:, :, -action_dim:]
        gradient = weights[-1].mT
        for weight, gate in zip(weights[-2::-1], passed[::-1], strict=True):
            gradient = (gradient * gate) @ weight.mT
        return q, gradient.expand(*q.shape, -1)


def _narrow_normal(weight: Tensor, bias: Tensor, rng: torch.Generator) -> None:
    """Initialises as offlinerl: normal weights of half a deviation 1/sqrt of the inputs, biases of 0.1."""
    weight.normal_(0, 0.5 * weight.shape[0] ** -0.5, generator=rng)
    bias.fill_(0.1)


class EDACNoise(NamedTuple):
    """Standard normal draws `(S, B, A)` for samples of the policy."""

    temperature: Tensor  # drawn at the states if the temperature is stepped before the policy
    actions: Tensor
    next_actions: Tensor


class EDAC(PolicyActing):
    """EDAC agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        limits = {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
        wrong_axis = networks.uniform(cfg.hidden_width**-0.5, bias=0.1)
        uniform, outputs = networks.uniform(bias=0.1), networks.uniform(1e-3)
        torchs, by_outputs = networks.torch_init, networks.uniform(fan="out")
        of_policy, of_critic = {
            "corl": ((uniform, outputs), (wrong_axis, networks.uniform(3e-3))),
            "official": ((wrong_axis, outputs), (uniform, networks.uniform(3e-3))),
            "neorl2": ((torchs, torchs), (_narrow_normal, networks.uniform(3e-3))),
            "lb_sac": ((torchs, torchs), (by_outputs, by_outputs)),
        }[cfg.init]
        inits = dict(zip(("init", "output_init"), of_policy, strict=True))
        policy = TanhGaussian(
            [O, *hidden, A], spec.lead, rngs, **limits, **inits, **cfg.mlp_options
        )
        inits = dict(zip(("init", "output_init"), of_critic, strict=True))
        norms = {"layer_norm": 1e-5, "norm_first": True} if cfg.critic_layer_norm else {}
        critic = Ensemble(
            [O, A, *hidden], rngs, heads=cfg.critics, **inits, **cfg.mlp_options | norms
        )
        if cfg.critic_layer_norm:  # one for all critics
            of_all = (networks.LayerNorm(width, (spec.seeds, 1)) for width in hidden)
            critic.norms = nn.ModuleList(of_all)
        self.policy, self.critic = policy.to(device), critic.to(device)
        self.target = optim.target_of(self.critic)
        self.log_alpha = networks.Scalar(0.0, spec.seeds).to(device)
        self.normalizer = spec.normalizer
        self.target_entropy = -float(A)
        alpha = self.alpha_optimizer = optim.Adam(self.log_alpha.parameters(), cfg.alpha_lr)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.policy_lr)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        self._alpha_step = GradientStep(self.alpha_loss, alpha, spec.mode)
        self._policy_step = GradientStep(self.policy_loss, pi, spec.mode)
        self._critic_step = GradientStep(self.critic_loss, q, spec.mode)

    @property
    def alpha(self) -> Tensor:
        """The temperature of each seed as it is used, `(S,)`."""
        alpha, highest = torch.exp(self.log_alpha()), self.cfg.alpha_max
        return alpha if highest is None else alpha.clamp(max=highest)

    # Losses. Batch fields are (S, B, ...), noise is (S, B, A); each loss is (S,).

    def alpha_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes -log alpha * (log pi + target entropy), the target being minus the action dimension."""
        with torch.no_grad():
            log_pi = self.policy.sample(batch.observations, noise)[1]
        loss = -self.log_alpha() * (log_pi + self.target_entropy).mean(-1)
        return loss, {"alpha": self.alpha, "entropy": -log_pi.mean(-1)}

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes alpha * log pi(a|s) - min_i Q_i(s, a) at a ~ pi(.|s)."""
        actions, log_pi = self.policy.sample(batch.observations, noise)
        q = self.critic(batch.observations, actions)
        loss = (self.alpha.detach()[:, None] * log_pi - q.amin(1)).mean(-1)
        return loss, {"policy_loss": loss, "q_std": q.detach().std(1, correction=0).mean(-1)}

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses every critic towards the soft minimum over targets, and adds eta * diversity (eq. 8)."""
        cfg = self.cfg
        with torch.no_grad():
            next_actions, log_pi = self.policy.sample(batch.next_observations, noise)
            next_q = self.target(batch.next_observations, next_actions)
            next_value = next_q.amin(1) - self.alpha[:, None] * log_pi
            y = batch.rewards + cfg.discount * (1 - batch.terminated) * next_value
        data = (batch.observations, batch.actions)
        if cfg.eta == 0:
            q, diversity = self.critic(*data), torch.zeros_like(y[:, 0])
        else:
            q, gradient = self.critic.with_action_gradient(*data)
            diversity = self.diversity(gradient)
        bellman = (q - y[:, None]).square().mean(-1).sum(1)
        metrics = {"bellman_loss": bellman, "diversity": diversity, "q": q.mean((1, 2))}
        return bellman + cfg.eta * diversity, metrics

    @staticmethod
    def diversity(gradient: Tensor) -> Tensor:
        """Averages sum_{i != j} <g_i, g_j> / (N - 1) over the batch, g_i of unit length: `(S,)`."""
        length = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        unit = gradient / (length + 1e-10)
        pairs = unit.sum(1).square().sum(-1) - unit.square().sum((1, 3))
        return pairs.mean(-1) / (gradient.shape[1] - 1)

    def update(self, batch: Batch, noise: EDACNoise) -> dict[str, Tensor]:
        """Takes one step of everything."""
        if self.cfg.order == "alpha_actor_critic":
            metrics = self._alpha_step(batch, noise.temperature)
            metrics |= self._policy_step(batch, noise.actions)
            metrics |= self._critic_step(batch, noise.next_actions)
        else:
            metrics = self._joint_step(batch, noise)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics

    def _joint_step(self, batch: Batch, noise: EDACNoise) -> dict[str, Tensor]:
        """Takes all gradients at the start of the step, from one sample, except for `critic_last`."""
        alpha, metrics = self._alpha_step.gradients(batch, noise.actions)
        policy, policy_metrics = self._policy_step.gradients(batch, noise.actions)
        if self.cfg.order == "joint":
            metrics |= self._critic_step(batch, noise.next_actions)
        self._alpha_step.apply(alpha)
        self._policy_step.apply(policy)
        if self.cfg.order == "critic_last":
            metrics |= self._critic_step(batch, noise.next_actions)
        return metrics | policy_metrics


build = EDAC


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = EDAC(cfg, run.spec(buffer, normalizer))
    noise = run.normal("noise", 3, cfg.batch_size, buffer.action_dim)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, noise=noise):
        metrics = update(buffer.sample(), EDACNoise(*noise.next().unbind(1)))
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
