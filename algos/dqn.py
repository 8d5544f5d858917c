"""DQN (Mnih et al. 2015) and double DQN (van Hasselt et al. 2016, arXiv:1509.06461), semi-Markov too.

Learns Q with one target network. The best next action is the target network's, or with `double=true` the
online network's:

    y = r + discount^k * Q'(s', argmax_a Q'(s', a))

k is the time that the step took, in whole units. It is 1 unless the environment says otherwise, by `longest`
and by `duration` in its info. Where decisions take unequal times, counting them finds a worse policy
(Fatemi et al. 2022, arXiv:2203.09365).

    python algos/dqn.py task=gym/CartPole-v1 steps=30000 seeds=3
    corerl train -m algo=dqn task=corerl/courier algo.double=true,false seeds=3
    corerl train -m algo=dqn_offline,bcq_discrete task=corerl/courier seeds=3   # from data

Authors here are those of the semi-Markov paper (mary-wu/smdp at e7a0e65). We had its abstract and code.

    item                   Mnih et al.               smdp's authors        ours            switch
 1  rewards inside a step  no such steps             discounted            counted at the  -
                                                                           step's start
 2  loss                   squared, clipped errors   Huber, summed over    Huber, its mean kappa
                                                     the batch
 3  optimiser              RMSprop                   Adam with amsgrad     Adam            -
 4  target                 a copy every 10,000       every 1,000           every 10,000    target_every
 5  learning from data     none                      the same loss         `dqn_offline`,  -
                                                                           a table
 6  semi-Markov BCQ        none                      an imitation head     `bcq_discrete`  -
 7  time limits            ends                      ends                  no ends         -
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.buffers.frame_replay import Transitions
from corerl.config import positive
from corerl.nn import optim
from corerl.nn.critics import action_values, gather_actions
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.training import deep_q
from corerl.training.deep_q import DeepQ, learn
from corerl.training.experience import Experience
from corerl.training.run import Run


@dataclass
class Config(DeepQ):
    name: str = "dqn"
    label: str = "DQN"

    double: bool = False  # the online network chooses the next action (double DQN)
    kappa: float = positive(1.0)  # error above which the Huber loss is linear


class DQN(Stateful):
    """DQN agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        self.critic = action_values(cfg, spec)
        self.target = optim.target_of(self.critic)
        self.optimizer = optim.Adam(self.critic.parameters(), cfg.lr, eps=cfg.adam_eps)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...); the loss is (S,).

    def loss(self, batch: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses Q of the taken action towards r + discount^k * Q' of the best next one."""
        with torch.no_grad():
            next_q = self.target(batch.next_observations)
            chooser = self.critic(batch.next_observations) if self.cfg.double else next_q
            next_value = gather_actions(next_q, chooser.argmax(-1))
            y = batch.rewards.squeeze(-1) + batch.discounts * next_value
        q = gather_actions(self.critic(batch.observations), batch.actions)
        loss = F.huber_loss(q, y, reduction="none", delta=self.cfg.kappa).mean(-1)
        return loss, {"loss": loss, "q": q.mean(-1)}

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """Takes one step of Adam."""
        return self._step(batch)

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.critic, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the best actions by Q, `(S, n, ...) -> (S, n)`."""
        return self.critic(observations).argmax(-1)


build = DQN
parts = deep_q.parts


def train(cfg: Config, run: Run) -> None:
    experience = Experience(cfg.data, run, cfg.batch_size, cfg.discount)
    learn(cfg, run, DQN(cfg, run.spec(experience)), experience)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
