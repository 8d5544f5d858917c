"""Discrete BCQ (Fujimoto, Conti, Ghavamzadeh, Pineau 2019, arXiv:1910.01708): Q-learning on likely actions.

Offline Q-learning overrates actions that the data lacks. Discrete BCQ fits, beside Q, a model of the data's
policy, G(a|s). Only actions that this model finds likely may be chosen, in targets and when acting:

    allowed(s) = {a : G(a|s) / max G(.|s) > threshold}
    y = r + discount * Q'(s', argmax over allowed(s') of Q(s', a))

One step of Adam descends Huber(Q(s, a) - y) - log G(a|s) + 0.01 * mean squared logit of G. With threshold=0
this is double DQN on the data. Towards 1 it clones: only the likeliest action is left.

    python algos/bcq_discrete.py task=corerl/cartpole steps=5000 seeds=3
    corerl train -m algo=bcq_discrete task=corerl/cartpole algo.threshold=0,0.3,0.9

The default is the authors' code (sfujim/BCQ at 4876f7e, discrete_BCQ/) with its settings for vectors. We had
the paper's abstract and introduction, and this code. Differences, and what to know:

    item               authors                                        ours                        switch
 1  target             vectors: soft, 0.005; Atari: a copy every      the same; for Atari         polyak,
                       8,000 updates                                  polyak=1 target_every=8000  target_every
 2  networks           Q and G share convolutions on Atari            apart; vectors only         -
 3  greedy in tests    vectors: always; Atari: 0.1 % at random        always                      -
 4  forbidden actions  Q is replaced by -1e8                          by minus infinity           -
 5  threshold=1        forbids all actions, so the first is taken     an error                    threshold
 6  the log of G       over probabilities                             over logits, the same set   -

Where the data has a column of durations, targets discount by elapsed time: semi-Markov BCQ
(arXiv:2203.09365), shown on `corerl/courier`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, positive, within
from corerl.nn import compile, optim
from corerl.nn.critics import action_values, gather_actions
from corerl.nn.learner import GradientStep, Sizes, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings
from corerl.training import preprocessing
from corerl.training.run import Run
from corerl.training.weighting import Weighting


@dataclass
class Config(MLPSettings):
    actions = "discrete"
    name: str = "bcq_discrete"
    label: str = "discrete BCQ"

    threshold: float = within(  # allows actions above this share of the largest probability
        0.3, "[0, 1)"
    )
    logit_weight: float = at_least(0, 0.01)  # weight of the behaviour model's mean squared logit
    kappa: float = positive(1.0)  # error above which the Huber loss is linear
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in the target, per target update
    target_every: int = positive(1)  # updates between target updates

    lr: float = positive(3e-4)
    adam_eps: float = positive(1e-8)
    batch_size: int = positive(64)
    hidden_layers: int = positive(2)
    hidden_width: int = positive(256)
    data: Weighting = group(Weighting)


class DiscreteBCQ(Stateful):
    """Discrete BCQ agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        self.critic = action_values(cfg, spec)
        self.imitator = action_values(cfg, spec)
        self.target = optim.target_of(self.critic)
        parameters = [*self.critic.parameters(), *self.imitator.parameters()]
        self.optimizer = optim.Adam(parameters, cfg.lr, eps=cfg.adam_eps)
        self._log_threshold = math.log(cfg.threshold) if cfg.threshold else -math.inf
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...), actions (S, B, 1); each loss is (S,).

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the losses of Q and of G."""
        actions = batch.actions.squeeze(-1).long()
        q = gather_actions(self.critic(batch.observations), actions)
        bellman = self.bellman_loss(batch, q)
        logits = self.imitator(batch.observations)
        likelihood = gather_actions(F.log_softmax(logits, -1), actions).mean(-1)
        size = logits.square().mean((1, 2))
        loss = bellman - likelihood + self.cfg.logit_weight * size
        allowed = self.allowed(logits.detach()).to(q.dtype).sum(-1).mean(-1)
        metrics = {"loss": loss, "bellman_loss": bellman, "imitation_loss": -likelihood}
        return loss, metrics | {"q": q.mean(-1), "allowed_actions": allowed}

    def bellman_loss(self, batch: Batch, q: Tensor) -> Tensor:
        """Regresses Q `(S, B)` towards r + discount * Q' of the best allowed next action."""
        with torch.no_grad():
            best = self.best(batch.next_observations)
            next_q = gather_actions(self.target(batch.next_observations), best)
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_q
        return F.huber_loss(q, y, reduction="none", delta=self.cfg.kappa).mean(-1)

    def allowed(self, logits: Tensor) -> Tensor:
        """Returns which actions G finds likely enough, `(S, B, A)`, from its logits of that shape."""
        return logits - logits.amax(-1, keepdim=True) > self._log_threshold

    def best(self, observations: Tensor) -> Tensor:
        """Returns the allowed actions of the largest Q, `(S, B)`."""
        allowed = self.allowed(self.imitator(observations))
        return self.critic(observations).masked_fill(~allowed, -math.inf).argmax(-1)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Takes one step of Adam on both networks."""
        return self._step(batch)

    def move_target(self) -> None:
        """Moves the target network towards the online one, or copies it where `polyak=1`."""
        optim.polyak(self.target, self.critic, self.cfg.polyak)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the best allowed actions, `(S, n, ...) -> (S, n)`."""
        return self.best(observations)


build = DiscreteBCQ


def train(cfg: Config, run: Run) -> None:
    buffer, shape, actions = preprocessing.load_discrete(run, cfg.data, cfg.batch_size)
    agent = DiscreteBCQ(cfg, run.spec(Sizes(shape, actions, discrete=True)))
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer):
        metrics = update(buffer.sample())
        run.log(step, metrics)
        if step % cfg.target_every == 0:
            agent.move_target()
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
