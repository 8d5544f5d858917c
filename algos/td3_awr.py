"""TD3-AWR (Jackson et al. 2025, arXiv:2504.11453): ReBRAC that imitates good actions more.

ReBRAC (algos/rebrac.py) draws the actor to the data's action with one coefficient for all rows. Here a row
counts exp(beta * A), as in IQL's advantage-weighted regression. The actor minimises

    beta_1 * min(exp(beta * A), 100) * |pi(s) - a|^2 - min Q(s, pi(s)) / mean |min Q|

with A = min Q(s, a) - V(s). V is fitted to an upper expectile of min Q over the data's actions. With
`beta=0` it is ReBRAC's actor.

    python algos/td3_awr.py task=corerl/pendulum steps=10000 seeds=3
    corerl train algo=td3_awr task=d4rl/halfcheetah-medium-v2 seeds=5

The authors give it as settings of one program (EmptyJackson/unifloral at f2dc127: algorithms/unifloral.py
and configs/unifloral/td3_awr.yaml). The paper was not at hand. A step here is one of theirs: the actor on a
batch, `critic_updates` updates of the critics on the same batch, V, and the targets.

    item                 unifloral                              ours                            switch
 1  settings             a random search over the values below  one point of that search        -
 2  1 / mean |min Q|     1e-7 is added to the mean              exact                           -
 3  no next action       the next row's action, whatever it is  such rows are left out          -
 4  actor's LayerNorms   epsilon 1e-6                           1e-5; critics and V: 1e-6       -
 5  ReBRAC's own order   -                                      critics first, two batches      algo=rebrac
 6  first weights        LeCun's, bias 0.1                      the same; authors: ReBRAC's     init

The search: actor_bc_coef in 0.0005, 0.001, 0.002, 0.003, 0.03, 0.1, 0.3 and 1, critic_bc_coef in 0, 0.0001,
0.0005, 0.001, 0.005, 0.01 and 0.1, beta in 0.5, 3 and 10, expectile in 0.5, 0.7 and 0.9.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.algos.rebrac import ReBRAC, layers
from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, within
from corerl.nn import compile, optim
from corerl.nn.critics import StateValue, expectile_loss
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config(MLPSettings):
    name: str = "td3_awr"
    label: str = "TD3-AWR"

    beta: float = at_least(0, 3.0)  # inverse temperature of imitation weights (0: ReBRAC's actor)
    max_weight: float = positive(100.0)  # largest imitation weight of a row
    expectile: float = within(0.7, "(0, 1)")  # V is this expectile of Q (0.5: mean, near 1: max)
    actor_bc_coef: float = at_least(0, 0.001)  # beta_1, weight of imitation in the actor's loss
    critic_bc_coef: float = at_least(0, 0.01)  # beta_2, weight of imitation in the critics' target
    normalize_q: bool = True  # divides Q by its mean absolute value in the actor's loss
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every step
    policy_noise: float = at_least(0, 0.2)  # standard deviation of the noise on the target action
    noise_clip: float = at_least(0, 0.5)  # bound at which noise on the target action is clipped
    critic_updates: int = positive(2)  # critic updates per step, all on one batch

    actor_lr: float = positive(1e-3)
    critic_lr: float = positive(1e-3)  # learning rate of critics and V
    adam_eps: float = positive(1e-5)
    batch_size: int = positive(1024)
    hidden_layers: int = at_least(0, 3)
    hidden_width: int = positive(256)
    layer_norm: bool = True  # LayerNorm in the actor
    critic_layer_norm: bool = True  # LayerNorm in critics and V
    init: str = one_of(  # lecun (unifloral) | authors (ReBRAC) | glorot
        "lecun", "authors", "glorot"
    )
    data: preprocessing.Preprocess = group(preprocessing.Preprocess)


class TD3AWR(ReBRAC):
    """TD3-AWR agents of S seeds: ReBRAC's networks and critic loss, and V."""

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__(cfg, spec)
        sizes = [spec.observation_dim, *[cfg.hidden_width] * cfg.hidden_layers]
        _, of_critic = layers(cfg)
        self.value = StateValue(sizes, spec.rngs, **of_critic).to(spec.device)
        self.value_optimizer = optim.Adam(self.value.parameters(), cfg.critic_lr, eps=cfg.adam_eps)
        self._value_step = GradientStep(self.value_loss, self.value_optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...); each loss is (S,). The critics' is ReBRAC's.

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes beta_1 * min(exp(beta * A), 100) * |pi(s) - a|^2 - lambda * min(Q1, Q2)(s, pi(s))."""
        cfg = self.cfg
        with torch.no_grad():
            advantage = self._advantage(batch)
            weight = torch.exp(cfg.beta * advantage).clamp(max=cfg.max_weight)
        actions = torch.tanh(self.actor(batch.observations))
        q = self.critic(batch.observations, actions).amin(1)
        scale = 1 / q.detach().abs().mean(-1) if cfg.normalize_q else 1.0
        imitation = (weight * (actions - batch.actions).square().sum(-1)).mean(-1)
        loss = cfg.actor_bc_coef * imitation - scale * q.mean(-1)
        metrics = {"actor_loss": loss, "imitation_loss": imitation}
        return loss, metrics | {"advantage": advantage.mean(-1), "weight": weight.mean(-1)}

    def value_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Fits V to the expectile of min(Q1, Q2) at the data's actions (IQL, eq. 5)."""
        loss = expectile_loss(self._advantage(batch), self.cfg.expectile).mean(-1)
        return loss, {"value_loss": loss}

    def _advantage(self, batch: Batch) -> Tensor:
        """Returns min Q(s, a) - V(s), `(S, B)`, with no gradient for the critics."""
        with torch.no_grad():
            q = self.critic(batch.observations, batch.actions).amin(1)
        return q - self.value(batch.observations)

    def update(self, batch: Batch, noise: Tensor) -> dict[str, Tensor]:
        """Takes one step of everything. `noise` (S, critic_updates, B, A) is normal."""
        grads, metrics = self._actor_gradients(batch)
        self.actor_optimizer.step(grads)
        for of_one in noise.unbind(1):
            metrics |= self._critic_step(batch, of_one)
        metrics |= self._value_step(batch)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        return metrics


build = TD3AWR


def train(cfg: Config, run: Run) -> None:
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size, next_actions=True)
    agent = TD3AWR(cfg, run.spec(buffer, normalizer))
    noise = run.normal("noise", cfg.critic_updates, cfg.batch_size, buffer.action_dim)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, noise=noise):
        metrics = update(buffer.sample(), noise.next())
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
