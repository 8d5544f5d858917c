"""IQN: implicit quantile networks (Dabney et al. 2018, arXiv:1806.06923).

A network of state and fraction, Z_tau(s, a), learns the whole quantile function: fractions tau are drawn
anew for every update, embedded by cosines (eq. 4) and multiplied into the state's features; each Z_tau is
regressed onto targets at other fractions tau' (eqs. 2 and 3). Actions are chosen by the mean over K draws.

    python algos/iqn.py task=gym/CartPole-v1 steps=30000 seeds=3
    corerl train algo=iqn task=atari/Pong steps=50000000 seeds=3

Differences. The authors' settings are those of DeepMind's dqn_zoo; the paper's numbers are our reading.
 1. Cosines of pi * i * tau for i = 1 to 64 (dqn_zoo, Dopamine); eq. 4 counts from i = 0, a constant.
 2. The best next action is the target network's over K fractions of its own (dqn_zoo). The paper leaves
    open whose; `double=true` lets the online network choose.
 3. `risk` < 1 chooses actions by CVaR: fractions on [0, risk] (section 3), in the target as well.
 4. An action to play is the best over K evenly spaced fractions; the authors draw them.
 5. Those of QR-DQN, numbers 4 to 6.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.algos.qr_dqn import of_action
from corerl.buffers.frame_replay import Transitions
from corerl.config import require
from corerl.nn import compile, networks, optim
from corerl.nn.encoders import Encoder
from corerl.nn.learner import Stateful
from corerl.risk.quantiles import huber_quantile_loss, midpoints
from corerl.training.collector import Collect, EpsilonGreedy, Experience
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "iqn"
    label: str = "IQN"

    fractions: int = 64  # N: predicted per update
    target_fractions: int = 64  # N'
    policy_fractions: int = 32  # K: averaged to choose an action
    cosines: int = 64  # of the embedding
    risk: float = 1.0  # actions maximise CVaR at this level; 1: the mean
    kappa: float = 1.0  # where the squared error turns into the absolute one; 0: always absolute
    discount: float = 0.99
    double: bool = False  # the online network chooses the next action
    target_every: int = 10_000  # environment steps between copies to the target network

    lr: float = 5e-5
    adam_eps: float = 0.01 / 32
    batch_size: int = 32
    hidden_layers: int = 1  # dense, after fraction and features have met
    hidden_width: int = 512
    data: Collect = field(default_factory=Collect)

    def __post_init__(self):
        for name in ("fractions", "target_fractions", "policy_fractions", "cosines"):
            value = getattr(self, name)
            require(value > 0, f"algo.{name}={value} must be positive")
        require(0 < self.risk <= 1, f"algo.risk={self.risk} must lie in (0, 1]")
        require(self.kappa >= 0, f"algo.kappa={self.kappa} must not be negative")
        require(self.hidden_layers > 0, f"algo.hidden_layers={self.hidden_layers} must be positive")
        self.data.require_turns(self.target_every)


class ImplicitQuantiles(nn.Module):
    """Z at states `(S, B, *shape)` and fractions `(S, B, N)`: `(S, B, A, N)`."""

    def __init__(self, cfg: Config, shape: tuple[int, ...], actions: int, rngs):
        super().__init__()
        lead = (len(rngs),)
        layers = 0 if len(shape) == 3 else 1  # the convolutions are features enough (eq. 4)
        self.encoder = Encoder(shape, layers, cfg.hidden_width, rngs)
        self.embedding = networks.Linear(cfg.cosines, self.encoder.features, lead, rngs)
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        self.head = networks.MLP([self.encoder.features, *hidden, actions], lead, rngs)
        counts = torch.arange(1, cfg.cosines + 1, dtype=torch.get_default_dtype())
        self.register_buffer("frequencies", math.pi * counts, persistent=False)

    def forward(self, observations: Tensor, fractions: Tensor) -> Tensor:
        waves = torch.cos(fractions[..., None] * self.frequencies).flatten(1, 2)
        embedded = F.relu(self.embedding(waves)).unflatten(1, fractions.shape[1:])
        together = self.encoder(observations)[:, :, None] * embedded
        values = self.head(together.flatten(1, 2)).unflatten(1, fractions.shape[1:])
        return values.transpose(2, 3)


class IQN(Stateful):
    """S independent learners. `shape`: of an observation; `actions`: how many; `rngs`: one per seed."""

    def __init__(
        self,
        cfg: Config,
        shape: tuple[int, ...],
        actions: int,
        rngs: list[torch.Generator],
        *,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg = cfg
        self.quantiles = ImplicitQuantiles(cfg, shape, actions, rngs).to(device)
        self.target = optim.target_of(self.quantiles)
        self.optimizer = optim.Adam(self.quantiles.parameters(), cfg.lr, eps=cfg.adam_eps)
        self.draws_per_state = cfg.fractions + cfg.target_fractions + cfg.policy_fractions
        self._gradients = compile.gradients(self.loss, self.optimizer.parameters, mode)

    # Losses. Batch fields are (S, B, ...), draws are (S, B, N + N' + K); the loss is (S,).

    def loss(self, batch: Transitions, draws: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Eqs. 2 and 3: Z at N fractions towards r + discount * Z' at N' others."""
        cfg = self.cfg
        fractions, others, choosing = draws.split(
            [cfg.fractions, cfg.target_fractions, cfg.policy_fractions], -1
        )
        with torch.no_grad():
            chooser = self.quantiles if cfg.double else self.target
            values = chooser(batch.next_observations, cfg.risk * choosing)
            best = values.mean(-1).argmax(-1)
            next_quantiles = of_action(self.target(batch.next_observations, others), best)
            y = batch.rewards + batch.discounts[..., None] * next_quantiles
        quantiles = of_action(self.quantiles(batch.observations, fractions), batch.actions)
        loss = huber_quantile_loss(quantiles, y, fractions, cfg.kappa).mean(-1)
        return loss, {"loss": loss, "value": quantiles.mean((1, 2))}

    def update(self, batch: Transitions, draws: Tensor) -> dict[str, Tensor]:
        """One step of Adam. `draws` (S, B, N + N' + K) are uniform."""
        grads, metrics = self._gradients(batch, draws)
        self.optimizer.step(grads)
        return metrics

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.quantiles, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The best actions `(S, n)` by the mean over K evenly spaced fractions."""
        fractions = self.cfg.risk * midpoints(self.cfg.policy_fractions, observations.device)
        fractions = fractions.expand(*observations.shape[:2], -1)
        return self.quantiles(observations, fractions).mean(-1).argmax(-1)


def train(cfg: Config, run: Run) -> None:
    experience = Experience(cfg.data, run, cfg.batch_size, cfg.discount)
    envs = experience.envs
    agent = IQN(cfg, envs.shape, envs.actions, run.rngs(), device=run.device, mode=run.mode)
    policy = EpsilonGreedy(agent.act, cfg.data.eval_epsilon, envs.actions, run.seeds)
    noise = seeding.uniform(
        run.seeds, "noise", (cfg.batch_size, agent.draws_per_state), run.device, block=16
    )
    update = compile.captured(agent.update, run.mode)
    state = {"agent": agent, "experience": experience, "policy": policy, "noise": noise}
    for step in run.steps(stride=cfg.data.train_every, **state):
        experience.play(step, agent.act)
        if experience.enough(step):
            metrics = update(experience.sample(), noise.next())
            run.log(step, metrics | {"episode_return": envs.episode_returns})
        if step % cfg.target_every == 0:
            agent.copy_target()
        run.evaluate(step, policy)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
