"""SubPO: policy gradients of a submodular return (Prajapat et al. 2024, ICLR, arXiv:2307.13372).

An episode is worth F of the set of states that it visited, as in coverage, surveys and experiment design.
What a state adds depends on the states before it, and no reward of state and action says it. A step's reward
is its marginal gain F(s | before) = F(before and s) - F(before). An action is weighed by the gains after it:

    gradient  E sum_h grad log pi(a_h | s_h) (sum of the gains from h on - baseline) + entropy bonus

    python algos/subpo.py task=risk/coverage seeds=3
    corerl train -m algo=subpo task=risk/coverage,risk/coverage-map seeds=5
    corerl train -m algo=subpo task=risk/coverage algo.weights=gains,prefix,whole seeds=5

A task of your own pays the marginal gain as its reward. The policy sees what the task shows. With state and
time it is the paper's Markov policy, and with the visited states beside them the non-Markov one. A step is a
batch of episodes and an update.

Differences from the authors' code (manish-pra/non-additive-RL at bdb52da):
 1. As released a step is weighed by F of the prefix that it ends. The gain and the sum of later ones are
    commented out there. That is no gradient: `weights=prefix`. `gains` is the paper.
 2. `weights=whole` weighs every step by the whole episode, which is a gradient too, and a noisier one.
 3. The baseline is the batch's mean at each step, of the other episodes. There is none there.
 4. F is not divided by a largest return. The entropy's weight falls with one over the steps, as there.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.config import at_least, one_of, positive
from corerl.nn import compile, networks, optim
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings, activation
from corerl.nn.policies import draw_number
from corerl.training.rollouts import Collector, Played, to_go
from corerl.training.run import Run


@dataclass
class Config(MLPSettings):
    actions = "discrete"
    name: str = "subpo"
    label: str = "SubPO"

    weights: str = one_of(  # weight of a step, gains (from it on) | prefix (F up to it) | whole
        "gains", "prefix", "whole"
    )
    baseline: str = one_of("others", "none")  # others (mean of the batch's other episodes) | none
    episodes: int = at_least(2, 100)  # episodes per batch
    max_steps: int = positive(100)  # largest number of steps in an episode (longer: truncated)
    entropy: float = at_least(0, 0.1)  # weight of the entropy bonus at first (falls as 1 / updates)

    lr: float = positive(1e-2)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(64)
    activation: str = activation("tanh")  # activation of the hidden layers


class SubPO(Stateful):
    """SubPO agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.clock = cfg, optim.Clock(spec.device)
        (width,) = np.atleast_1d(spec.observation_dim).tolist()
        sizes = [width, *[cfg.hidden_width] * cfg.hidden_layers, spec.action_dim]
        self.policy = networks.MLP(sizes, spec.lead, spec.rngs, **cfg.mlp_options).to(spec.device)
        optimizer = self.optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self._step = GradientStep(self.loss, optimizer, spec.mode)

    def weights(self, played: Played) -> Tensor:
        """Returns what each action is weighed by, `(S, E, T)`, less the baseline."""
        cfg, gains = self.cfg, played.rewards
        if cfg.weights == "gains":
            weights = to_go(gains)
        elif cfg.weights == "prefix":
            weights = gains.cumsum(-1)
        else:
            weights = gains.sum(-1, keepdim=True).expand_as(gains)
        if cfg.baseline == "others":
            alive = played.alive
            total, count = (weights * alive).sum(1, keepdim=True), alive.sum(1, keepdim=True)
            others = (total - weights * alive) / (count - 1).clamp(min=1)
            weights = weights - others
        return weights * played.alive

    def loss(self, played: Played, weights: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the likelihood-ratio loss, less the entropy bonus."""
        logits = self.policy(played.observations.flatten(1, 2)).unflatten(1, weights.shape[1:])
        log_probs = F.log_softmax(logits, -1)
        taken = log_probs.gather(-1, played.actions[..., None]).squeeze(-1)
        entropy = -((log_probs.exp() * log_probs).sum(-1) * played.alive).sum((1, 2))
        entropy = entropy / played.alive.sum((1, 2))
        gain = (taken * weights).sum(-1).mean(-1)
        bonus = self.cfg.entropy / (1 + self.clock.count)
        return -gain - bonus * entropy, {"entropy": entropy}

    def update(self, played: Played) -> dict[str, Tensor]:
        """Takes a step of the policy."""
        metrics = self._step(played, self.weights(played))
        self.clock.step()
        return metrics | {"return": played.rewards.sum(-1).mean(-1)}

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the likeliest actions `(S, n)`."""
        return self.policy(observations).argmax(-1)


class Draws:
    """The policy in play, which draws its actions by uniforms `(S, T, E)`."""

    def __init__(self, policy: networks.MLP, uniforms: Tensor):
        self._policy, self._uniforms = policy, uniforms

    def begin(self, seeds: int, episodes: int) -> None:
        self._t = 0

    def reward(self, rewards: Tensor) -> None:
        self._t += 1

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        return draw_number(self._policy(observations), self._uniforms[:, self._t])


build = SubPO


def train(cfg: Config, run: Run) -> None:
    collector = Collector(run.task.make_env, run.seeds, cfg.episodes, cfg.max_steps, run.device)
    agent = SubPO(cfg, run.spec(collector))
    uniforms = run.uniform("actions", cfg.max_steps, cfg.episodes, block=1)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, collector=collector, uniforms=uniforms):
        run.log(step, update(collector.play(Draws(agent.policy, uniforms.next()))))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
