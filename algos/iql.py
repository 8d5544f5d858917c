"""Implicit Q-Learning (Kostrikov, Nair and Levine 2022, arXiv:2110.06169).

Never asks the critic about an action that is not in the data: a value function is fitted to an upper
expectile of Q over the data's actions (eq. 5), Q is backed up through that value (eq. 6), and the
policy is extracted by advantage-weighted regression (eq. 7).

    python algos/iql.py task=corerl/pendulum steps=20000 seeds=3
    corerl train algo=iql task=d4rl/hopper-medium-v2 seeds=10
    corerl train algo=iql task=d4rl/antmaze-umaze-v2 steps=2000000 \
        algo.phase=both algo.online.pretrain_steps=1000000

Differences, each with its reason:
 1. The paper's Algorithm 1 leaves the order of the three steps open. The default is the authors' code:
    value, then policy and critic with the new value, then targets. `order=joint` takes all gradients at
    the start of the step, which is what CORL computes.
 2. The authors' critic loss is the sum over both critics; `critic_loss=mean` is CORL's, half as large.
 3. The authors initialise every layer orthogonally with gain sqrt(2), outputs too; `init=torch` is
    CORL's.
 4. The policy's mean passes through tanh while samples are not squashed; its log-std is one vector for
    all states, clamped to [-5, 2] (authors) or, with `log_std_min=-20`, to CORL's range.
 5. `policy=deterministic` regresses the mean with squared error, as CORL does on two hopper sets.
 6. States are not normalised (authors); `data.normalize_states=true` is CORL's.
 7. The return range that scales locomotion rewards is taken over true episodes; see preprocessing.py.
 8. Dropout acts after each hidden activation of the policy (authors, on Adroit and Kitchen). CORL's
    published Adroit scores were most likely run without it.
 9. Fine-tuning (section 5.3): actions are samples, the dataset is the replay's beginning, and the
    policy's rate is constant, as in the authors' code. `policy=deterministic` explores with CORL's
    normal noise of 0.03.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.nn import compile, networks, optim
from corerl.runs.checkpoint import Stateful
from corerl.training import preprocessing
from corerl.training.offline_to_online import Online, Phases, check
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "iql"
    label: str = "IQL"

    expectile: float = 0.7  # tau of eq. 5; 0.5 is the mean, towards 1 the best action in the data
    beta: float = 3.0  # inverse temperature of eq. 7; 0 is behaviour cloning
    discount: float = 0.99
    polyak: float = 0.005  # share of the new critic in its target, every update
    advantage_limit: float = 100.0  # largest weight of a sample in eq. 7

    lr: float = 3e-4  # of all three networks
    cosine: bool = True  # the policy's rate decays to 0 over the run, where all of it is offline
    batch_size: int = 256
    hidden_layers: int = 2
    hidden_width: int = 256
    dropout: float = 0.0  # in the policy
    log_std_min: float = -5.0
    log_std_max: float = 2.0

    policy: str = "gaussian"  # gaussian | deterministic
    order: str = "value_first"  # value_first (authors) | joint (CORL)
    critic_loss: str = "sum"  # sum (authors) | mean (CORL), over the two critics
    init: str = "orthogonal"  # orthogonal (authors) | torch (CORL)
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(clip_actions=1 - 1e-5)
    )

    phase: str = "offline"  # offline | both: then online fine-tuning | online: from a checkpoint
    online: Online = field(default_factory=Online)

    def __post_init__(self):
        check(self)
        require(0 < self.expectile < 1, f"algo.expectile={self.expectile} must lie in (0, 1)")
        require(self.beta >= 0, f"algo.beta={self.beta} must not be negative")
        require(0 <= self.dropout < 1, f"algo.dropout={self.dropout} must lie in [0, 1)")
        require(self.policy in ("gaussian", "deterministic"), f"algo.policy={self.policy} unknown")
        require(self.order in ("value_first", "joint"), f"algo.order={self.order} unknown")
        require(self.critic_loss in ("sum", "mean"), f"algo.critic_loss={self.critic_loss} unknown")
        require(self.init in ("orthogonal", "torch"), f"algo.init={self.init} unknown")


class Policy(nn.Module):
    """A Gaussian with a tanh mean and one log-std per action dimension, `(S, B, O) -> (S, B, A)`."""

    def __init__(self, cfg: Config, sizes: list[int], rngs: list[torch.Generator], init):
        super().__init__()
        self.body = networks.MLP(sizes, (len(rngs),), rngs, init=init)
        self.log_std = nn.Parameter(torch.zeros(len(rngs), 1, sizes[-1]))
        self.limits = (cfg.log_std_min, cfg.log_std_max)

    def forward(self, observations: Tensor, keep: list[Tensor] | None = None) -> Tensor:
        return torch.tanh(self.body(observations, keep))

    def log_prob(self, mean: Tensor, actions: Tensor) -> Tensor:
        return networks.gaussian_log_prob(mean, self.log_std.clamp(*self.limits), actions)


class IQL(Stateful):
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed."""

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        steps: int,
        normalizer: networks.Normalizer | None = None,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg = cfg
        self._decays = cfg.cosine and cfg.phase == "offline"
        init = networks.orthogonal() if cfg.init == "orthogonal" else networks.torch_init
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        seeds = len(rngs)
        critic = networks.MLP(
            [observation_dim + action_dim, *hidden, 1], (seeds, 2), rngs, init=init
        )
        value = networks.MLP([observation_dim, *hidden, 1], (seeds,), rngs, init=init)
        policy = Policy(cfg, [observation_dim, *hidden, action_dim], rngs, init)
        self.critic, self.value = critic.to(device), value.to(device)
        self.policy = policy.to(device)
        self.target = optim.target_of(self.critic)
        self.normalizer = normalizer or nn.Identity()

        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self.value_optimizer = optim.Adam(self.value.parameters(), cfg.lr)
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        if self._decays:
            self.schedule = optim.Schedule(self.policy_optimizer, optim.cosine(steps))
        v, pi, q = (o.parameters for o in self._optimizers())
        self._value_gradients = compile.gradients(self.value_loss, v, mode)
        self._later_gradients = compile.gradients(self._policy_and_critic_loss, pi + q, mode)
        self._joint_gradients = compile.gradients(self._joint_loss, v + pi + q, mode)

    def _optimizers(self) -> tuple[optim.Adam, optim.Adam, optim.Adam]:
        return self.value_optimizer, self.policy_optimizer, self.critic_optimizer

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def value_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. 5: the expectile of min(Q1, Q2) of the target critics over the data's actions."""
        with torch.no_grad():
            target_q = self._q(self.target, batch).amin(1)
        difference = target_q - self.value(batch.observations).squeeze(-1)
        weight = torch.where(difference < 0, 1 - self.cfg.expectile, self.cfg.expectile)
        loss = (weight * difference.square()).mean(-1)
        metrics = {"value_loss": loss, "advantage": difference.mean(-1), "target_q": target_q}
        return loss, metrics

    def critic_loss(self, batch: Batch) -> Tensor:
        """Eq. 6: both critics towards r + discount * V(s'), with no maximum over actions."""
        with torch.no_grad():
            next_value = self.value(batch.next_observations).squeeze(-1)
            not_over = 1 - batch.terminated
            y = batch.rewards + self.cfg.discount * not_over * next_value
        per_critic = (self._q(self.critic, batch) - y[:, None]).square().mean(-1)
        return per_critic.sum(1) if self.cfg.critic_loss == "sum" else per_critic.mean(1)

    def policy_loss(self, batch: Batch, target_q: Tensor, keep: list[Tensor] | None) -> Tensor:
        """Eq. 7: regression towards the data's actions, weighted by exp(beta * advantage)."""
        with torch.no_grad():
            advantage = target_q - self.value(batch.observations).squeeze(-1)
            weight = torch.exp(self.cfg.beta * advantage).clamp(max=self.cfg.advantage_limit)
        mean = self.policy(batch.observations, keep)
        if self.cfg.policy == "deterministic":
            distance = (mean - batch.actions).square().sum(-1)
        else:
            distance = -self.policy.log_prob(mean, batch.actions)
        return (weight * distance).mean(-1)

    def _q(self, critic: nn.Module, batch: Batch) -> Tensor:
        """Both critics at the data's actions, `(S, 2, B)`."""
        inputs = torch.cat([batch.observations, batch.actions], -1)
        return critic(inputs[:, None]).squeeze(-1)

    def _policy_and_critic_loss(self, batch: Batch, target_q: Tensor, uniforms: Tensor | None):
        policy_loss = self.policy_loss(batch, target_q, self._keep(uniforms))
        critic_loss = self.critic_loss(batch)
        return policy_loss + critic_loss, {"policy_loss": policy_loss, "critic_loss": critic_loss}

    def _joint_loss(self, batch: Batch, uniforms: Tensor | None):
        value_loss, metrics = self.value_loss(batch)
        later, more = self._policy_and_critic_loss(batch, metrics["target_q"], uniforms)
        return value_loss + later, metrics | more

    def _keep(self, uniforms: Tensor | None) -> list[Tensor] | None:
        if uniforms is None:
            return None
        return list(networks.dropout_masks(uniforms, self.cfg.dropout).unbind(1))

    def update(self, batch: Batch, uniforms: Tensor | None = None) -> dict[str, Tensor]:
        """One step of everything. `uniforms` (S, layers, B, width) are for dropout."""
        if self.cfg.order == "joint":
            grads, metrics = self._joint_gradients(batch, uniforms)
            optim.step(self._optimizers(), grads)
        else:
            grads, metrics = self._value_gradients(batch)
            self.value_optimizer.step(grads)
            grads, more = self._later_gradients(batch, metrics["target_q"], uniforms)
            optim.step(self._optimizers()[1:], grads)
            metrics |= more
        if self._decays:
            self.schedule.step()
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | {"target_q": metrics["target_q"].mean(-1)}

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The mean action at raw observations, `(S, n, O) -> (S, n, A)`."""
        return self.policy(self.normalizer(observations)).clamp(-1, 1)

    @torch.no_grad()
    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The Gaussian's log-density `(S, n)` of actions `(S, n, A)` at raw observations."""
        return self.policy.log_prob(self.policy(self.normalizer(observations)), actions)

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """A sampled action, `(S, n, O)` and noise `(S, n, A)` to `(S, n, A)`."""
        std = torch.exp(self.policy.log_std.clamp(*self.policy.limits))
        if self.cfg.policy == "deterministic":
            std = 0.03
        return (self.policy(self.normalizer(observations)) + std * noise).clamp(-1, 1)


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = IQL(
        cfg,
        buffer.observation_dim,
        buffer.action_dim,
        run.rngs(),
        steps=run.cfg.steps,
        normalizer=normalizer,
        device=run.device,
        mode=run.mode,
    )
    dropout = None
    if cfg.dropout:
        shape = (cfg.hidden_layers, cfg.batch_size, cfg.hidden_width)
        dropout = seeding.uniform(run.seeds, "dropout", shape, run.device)
    phases = Phases(cfg, run, buffer, normalizer)
    phases.restore(agent, "iql")
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, dropout=dropout, **phases.parts):
        phases.act(step, agent.explore)
        if phases.learns(step):
            metrics = update(phases.sample(step), dropout and dropout.next())
            run.log(step, metrics | phases.metrics())
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
