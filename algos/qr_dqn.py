"""QR-DQN: distributional RL with quantile regression (Dabney et al. 2018, arXiv:1710.10044).

Learns the law of the return as N quantiles at the midpoints of N equal parts of [0, 1] (section 4.1): each
is regressed onto all N targets r + discount * (quantiles of the best next action) with the quantile Huber
loss (eqs. 9 and 10, algorithm 1). Actions are chosen by the quantiles' mean.

    python algos/qr_dqn.py task=gym/CartPole-v1 steps=30000 seeds=3
    corerl train algo=qr_dqn task=atari/Pong steps=50000000 seeds=3

Differences. The authors' settings are those of DeepMind's dqn_zoo; the paper's numbers are our reading.
 1. The loss of eq. 10 is divided by kappa, as in IQN and dqn_zoo; with kappa = 1 that changes nothing.
 2. The best next action is the target network's (algorithm 1); `double=true` lets the online network choose.
 3. 200 quantiles (paper); dqn_zoo has 201, so that one of them is the median.
 4. `data.n_step` sums rewards before the bootstrap; the paper has 1. Starts on Pong are slow with 1.
 5. No game is idle at its start for a random number of steps, and by default no action is sticky: see
    envs/atari.py. A lost life is a terminal (paper's protocol; `data.life_loss=false` not).
 6. A time limit is no end: see corerl/buffers/frame_replay.py.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

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
    name: str = "qr_dqn"
    label: str = "QR-DQN"

    quantiles: int = 200  # N
    kappa: float = 1.0  # where the squared error turns into the absolute one; 0: always absolute
    discount: float = 0.99
    double: bool = False  # the online network chooses the next action
    target_every: int = 10_000  # environment steps between copies to the target network

    lr: float = 5e-5
    adam_eps: float = 0.01 / 32
    batch_size: int = 32
    hidden_layers: int = 1  # dense, after the convolutions where observations are images
    hidden_width: int = 512
    data: Collect = field(default_factory=Collect)

    def __post_init__(self):
        require(self.quantiles > 0, f"algo.quantiles={self.quantiles} must be positive")
        require(self.kappa >= 0, f"algo.kappa={self.kappa} must not be negative")
        require(self.hidden_layers > 0, f"algo.hidden_layers={self.hidden_layers} must be positive")
        self.data.require_turns(self.target_every)


class Quantiles(nn.Module):
    """N quantiles of the return of each of A actions, `(S, B, *shape) -> (S, B, A, N)`."""

    def __init__(self, cfg: Config, shape: tuple[int, ...], actions: int, rngs):
        super().__init__()
        self.encoder = Encoder(shape, cfg.hidden_layers, cfg.hidden_width, rngs)
        self.head = networks.Linear(cfg.hidden_width, actions * cfg.quantiles, (len(rngs),), rngs)
        self.counts = (actions, cfg.quantiles)

    def forward(self, observations: Tensor) -> Tensor:
        return self.head(self.encoder(observations)).unflatten(-1, self.counts)


def of_action(values: Tensor, actions: Tensor) -> Tensor:
    """The rows `(S, B, N)` of `values` `(S, B, A, N)` that belong to `actions` `(S, B)`."""
    rows = actions[..., None, None].expand(-1, -1, 1, values.shape[-1])
    return values.gather(2, rows).squeeze(2)


class QRDQN(Stateful):
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
        self.quantiles = Quantiles(cfg, shape, actions, rngs).to(device)
        self.target = optim.target_of(self.quantiles)
        self.optimizer = optim.Adam(self.quantiles.parameters(), cfg.lr, eps=cfg.adam_eps)
        self._fractions = midpoints(cfg.quantiles, device)
        self._gradients = compile.gradients(self.loss, self.optimizer.parameters, mode)

    # Losses. Batch fields are (S, B, ...); the loss is (S,).

    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Algorithm 1: the taken action's quantiles towards those of the best next action."""
        with torch.no_grad():
            next_quantiles = self.target(batch.next_observations)
            chooser = self.quantiles(batch.next_observations) if self.cfg.double else next_quantiles
            best = chooser.mean(-1).argmax(-1)
            y = batch.rewards + batch.discounts[..., None] * of_action(next_quantiles, best)
        quantiles = of_action(self.quantiles(batch.observations), batch.actions)
        loss = huber_quantile_loss(quantiles, y, self._fractions, self.cfg.kappa).mean(-1)
        spread = quantiles.std(-1, correction=0).mean(-1)
        return loss, {"loss": loss, "value": quantiles.mean((1, 2)), "spread": spread}

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """One step of Adam."""
        grads, metrics = self._gradients(batch)
        self.optimizer.step(grads)
        return metrics

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.quantiles, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The best actions by the mean return, `(S, n, ...) -> (S, n)`."""
        return self.quantiles(observations).mean(-1).argmax(-1)


def train(cfg: Config, run: Run) -> None:
    experience = Experience(cfg.data, run, cfg.batch_size, cfg.discount)
    envs = experience.envs
    agent = QRDQN(cfg, envs.shape, envs.actions, run.rngs(), device=run.device, mode=run.mode)
    policy = EpsilonGreedy(agent.act, cfg.data.eval_epsilon, envs.actions, run.seeds)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(
        stride=cfg.data.train_every, agent=agent, experience=experience, policy=policy
    ):
        experience.play(step, agent.act)
        if experience.enough(step):
            metrics = update(experience.sample())
            run.log(step, metrics | {"episode_return": envs.episode_returns})
        if step % cfg.target_every == 0:
            agent.copy_target()
        run.evaluate(step, policy)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
