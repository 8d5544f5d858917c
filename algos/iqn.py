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
 4. An action to play is the best over K evenly spaced fractions; the authors draw them. K is the paper's 32;
    dqn_zoo has 64.
 5. Those of QR-DQN, numbers 4 to 6.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.frame_replay import Transitions
from corerl.config import at_least, positive, within
from corerl.nn import embeddings, networks, optim
from corerl.nn.critics import gather_actions
from corerl.nn.encoders import Encoder
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.risk.quantiles import huber_quantile_loss, midpoints
from corerl.training import deep_q
from corerl.training.deep_q import DeepQ, learn
from corerl.training.experience import Experience
from corerl.training.run import Run


@dataclass
class Config(DeepQ):
    name: str = "iqn"
    label: str = "IQN"

    fractions: int = positive(64)  # N, number of predicted quantile fractions per update
    target_fractions: int = positive(64)  # N', number of target quantile fractions per update
    policy_fractions: int = positive(32)  # K, number of quantile fractions that choose an action
    cosines: int = positive(64)  # number of cosines in the embedding of a quantile fraction
    risk: float = within(1.0, "(0, 1]")  # actions maximise CVaR at this level (1: the mean)
    kappa: float = at_least(0, 1.0)  # error above which the quantile loss is linear (0: always)
    double: bool = False  # the online network chooses the next action (double DQN)
    hidden_layers: int = positive(1)  # dense layers on the product of state and fraction features


class Draws(NamedTuple):
    """Uniform fractions of an update, `(S, B, ...)`."""

    predicted: Tensor  # (S, B, N)
    target: Tensor  # (S, B, N')
    choosing: Tensor  # (S, B, K), to choose the next action


class ImplicitQuantiles(nn.Module):
    """Z at states `(S, B, *shape)` and fractions `(S, B, N)`: `(S, B, A, N)`."""

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__()
        shape, rngs = spec.observation_dim, spec.rngs
        layers = 0 if len(shape) == 3 else 1  # the convolutions are features enough (eq. 4)
        self.encoder = Encoder(shape, layers, cfg.hidden_width, rngs, **cfg.mlp_options)
        self.embedding = networks.Linear(cfg.cosines, self.encoder.features, spec.lead, rngs)
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        sizes = [self.encoder.features, *hidden, spec.action_dim]
        self.head = networks.MLP(sizes, spec.lead, rngs, **cfg.mlp_options)
        self.cosines = embeddings.Cosines(cfg.cosines)

    def forward(self, observations: Tensor, fractions: Tensor) -> Tensor:
        waves = self.cosines(fractions).flatten(1, 2)
        embedded = F.relu(self.embedding(waves)).unflatten(1, fractions.shape[1:])
        product = self.encoder(observations)[:, :, None] * embedded
        values = self.head(product.flatten(1, 2)).unflatten(1, fractions.shape[1:])
        return values.transpose(2, 3)


class IQN(Stateful):
    """IQN agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        self.quantiles = ImplicitQuantiles(cfg, spec).to(spec.device)
        self.target = optim.target_of(self.quantiles)
        self.optimizer = optim.Adam(self.quantiles.parameters(), cfg.lr, eps=cfg.adam_eps)
        self.counts = (cfg.fractions, cfg.target_fractions, cfg.policy_fractions)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...); the loss is (S,).

    def loss(self, batch: Transitions, uniforms: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Eqs. 2 and 3: Z at N fractions towards r + discount * Z' at N' others."""
        cfg, draws = self.cfg, Draws(*uniforms.split(self.counts, -1))
        with torch.no_grad():
            chooser = self.quantiles if cfg.double else self.target
            values = chooser(batch.next_observations, cfg.risk * draws.choosing)
            best = values.mean(-1).argmax(-1)
            next_quantiles = gather_actions(
                self.target(batch.next_observations, draws.target), best
            )
            y = batch.rewards + batch.discounts[..., None] * next_quantiles
        predicted = self.quantiles(batch.observations, draws.predicted)
        quantiles = gather_actions(predicted, batch.actions)
        loss = huber_quantile_loss(quantiles, y, draws.predicted, cfg.kappa).mean(-1)
        return loss, {"loss": loss, "value": quantiles.mean((1, 2))}

    def update(self, batch: Transitions, uniforms: Tensor) -> dict[str, Tensor]:
        """Takes one step of Adam. `uniforms` are (S, B, N + N' + K)."""
        return self._step(batch, uniforms)

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.quantiles, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the best actions `(S, n)` by the mean over K evenly spaced fractions."""
        fractions = self.cfg.risk * midpoints(self.cfg.policy_fractions, observations.device)
        fractions = fractions.expand(*observations.shape[:2], -1)
        return self.quantiles(observations, fractions).mean(-1).argmax(-1)


build = IQN
parts = deep_q.parts


def train(cfg: Config, run: Run) -> None:
    experience = Experience(cfg.data, run, cfg.batch_size, cfg.discount)
    agent = IQN(cfg, run.spec(experience))
    noise = run.uniform("noise", cfg.batch_size, sum(agent.counts), block=16)
    learn(cfg, run, agent, experience, noise)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
