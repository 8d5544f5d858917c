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
    envs/atari.py. A lost life is a terminal (paper's protocol; `data.life_loss=false` not), and empties the
    stack of frames in training; dqn_zoo keeps it. There the larger of two frames is taken in colour, and
    pictures are grey by its own weights and made small by interpolation; envs/atari.py has Dopamine's.
 6. A time limit is no end: see corerl/buffers/frame_replay.py.
 7. On Atari gradients are clipped to norm 10, as in dqn_zoo (`max_grad_norm`); the paper says nothing of it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.buffers.frame_replay import Transitions
from corerl.config import added, at_least, positive, within
from corerl.nn import optim
from corerl.nn.critics import action_values, gather_actions
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.risk.quantiles import huber_quantile_loss, midpoints
from corerl.training import deep_q
from corerl.training.deep_q import DeepQ, learn
from corerl.training.experience import Experience
from corerl.training.run import Run


@dataclass
class Config(DeepQ):
    name: str = "qr_dqn"
    label: str = "QR-DQN"

    quantiles: int = positive(200)  # N, number of quantiles of the return distribution
    kappa: float = at_least(0, 1.0)  # error above which the quantile loss is linear (0: always)
    double: bool = False  # the online network chooses the next action (double DQN)
    max_grad_norm: float | None = added(  # largest gradient norm (null: not clipped)
        within(None, "(0, inf)")
    )


class QRDQN(Stateful):
    """QR-DQN agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        self.quantiles = action_values(cfg, spec, cfg.quantiles)
        self.target = optim.target_of(self.quantiles)
        self.optimizer = optim.Adam(self.quantiles.parameters(), cfg.lr, eps=cfg.adam_eps)
        self._fractions = midpoints(cfg.quantiles, spec.device)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode, max_norm=cfg.max_grad_norm)

    # Losses. Batch fields are (S, B, ...); the loss is (S,).

    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses the taken action's quantiles towards those of the best next action (algorithm 1)."""
        with torch.no_grad():
            next_quantiles = self.target(batch.next_observations)
            chooser = self.quantiles(batch.next_observations) if self.cfg.double else next_quantiles
            best = chooser.mean(-1).argmax(-1)
            y = batch.rewards + batch.discounts[..., None] * gather_actions(next_quantiles, best)
        quantiles = gather_actions(self.quantiles(batch.observations), batch.actions)
        loss = huber_quantile_loss(quantiles, y, self._fractions, self.cfg.kappa).mean(-1)
        spread = quantiles.std(-1, correction=0).mean(-1)
        return loss, {"loss": loss, "value": quantiles.mean((1, 2)), "spread": spread}

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """Takes one step of Adam."""
        return self._step(batch)

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.quantiles, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the best actions by the mean return, `(S, n, ...) -> (S, n)`."""
        return self.quantiles(observations).mean(-1).argmax(-1)


build = QRDQN
parts = deep_q.parts


def train(cfg: Config, run: Run) -> None:
    experience = Experience(cfg.data, run, cfg.batch_size, cfg.discount)
    learn(cfg, run, QRDQN(cfg, run.spec(experience)), experience)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
