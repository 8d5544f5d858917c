"""ARSQ: Auto-Regressive Soft Q-learning (Liu et al. 2025, arXiv:2502.00288).

Soft Q-learning without an actor: an action is a sequence of choices among B bins, dimension after
dimension and level after level, and Q is a state value plus the sum of one soft advantage per choice
given those before it. As exp(A / alpha) of every choice sums to 1, V is the soft maximum of Q over all
actions and the policy is a product of softmaxes, so that neither a next action nor a maximum is needed.

    python algos/arsq.py task=corerl/pendulum steps=4000
    corerl train algo=arsq task=d4rl/hopper-medium-replay-v2 seeds=5

`steps` are those of the environment, of which the first draws on the dataset alone; phase=offline makes
them updates on the data, and phase=both begins with `online.pretrain_steps` of those.

What differs. Of the paper we know its abstract and summaries; the authors' code is their D4RL release as a
later project carries it (mihir-chauhan/CQN-AS-Franka at fe90e72, ARSQ-main/d4rl), where settings are too.

    item               paper     authors                         ours                        switch
 1  Bellman loss       halved    not halved                      not halved                  -
 2  behaviour loss     a margin  margin; default, and five of    authors'                    behaviour
                                 nine sets: log-sum-exp over
                                 the bins that were not taken
 3  its mean           -         over demonstrations; RLBench:   authors'                    behaviour_mean
                                 over all rows
 4  demonstrations     -         the dataset, half of a batch    authors'                    demos
    the other half     -         a replay that began as the      authors'; or a fixed        online.capacity,
                                 dataset, worst first            proportion                  offline_ratio
 5  updates            -         an episode, then as many        `utd` after a step, on the  utd
                                                                 replay before that step
 6  heads              -         computed for all pairs          each for its own context    -
 7  acting             -         by the smaller normalised A;    authors', its softmax       act_with
                                 RLBench: by the target          normalised anew
 8  evaluated action   -         the best bin of each choice     authors'                    -
 9  relabelling        -         an option                       left out                    -

The worst episode stands first in the replay, and so is lost first (4). A GPU learns while simulators run
(5). One uniform number per choice picks the bin (7). The evaluated action is not the best of all choices
jointly (8). Good episodes become demonstrations where the authors' option says so, which compares a sum
of rewards with a mean (9); left out too are their ablations (bias network, networks per element, stale
contexts), their upper clip of 1e7, and the encoders and networks of RLBench.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, within
from corerl.nn import bins, compile, networks, optim
from corerl.nn.bins import Bins
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.training import demonstrations, preprocessing
from corerl.training.demonstrations import Demos, Rows
from corerl.training.offline_to_online import FineTuning, Online, Phases
from corerl.training.run import Run


@dataclass
class Config(FineTuning):
    learns_from_data = True  # demonstrations are in every batch

    name: str = "arsq"
    label: str = "ARSQ"

    levels: int = positive(1)  # L, number of levels (each one splits the bin chosen before)
    bins: int = at_least(2, 41)  # B, number of bins per level and action dimension
    alpha: float = positive(0.1)  # temperature of the soft advantages and of the policy
    bellman_weight: float = at_least(0, 1.0)  # weight of the Bellman error
    behaviour: str = one_of(  # loss on demonstrations, lse (log-sum-exp) | margin (mean of gaps)
        "lse", "margin"
    )
    behaviour_weight: float = at_least(0, 5.0)  # weight of the loss on demonstrations
    behaviour_floor: float = -1.0  # smallest gap in the demonstration loss (minus the margin)
    behaviour_temperature: float = positive(1.0)  # temperature of the log-sum-exp (behaviour=lse)
    behaviour_mean: str = one_of(  # demonstration loss is a mean over demos | batch (all rows)
        "demos", "batch"
    )

    utd: int = positive(1)  # updates per environment step
    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update
    act_with: str = one_of("online", "target")  # acting network, online | target (as on RLBench)

    lr: float = positive(3e-4)
    batch_size: int = positive(256)  # replay rows per batch, besides demos.rows demonstrations
    demos: Demos = group(Demos)
    hidden_layers: int = at_least(0, 3)
    hidden_width: int = positive(512)
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)

    phase: str = "online"  # online | both (offline, then online) | offline (updates on data only)
    online: Online = group(Online)

    def __post_init__(self):
        super().__post_init__()
        bins.check(self)
        demonstrations.check(self)


class Advantages(networks.MLP):
    """Advantages before normalisation, of each choice from the centres that those before it led to.

    `(S, B, O)` and `(S, K, B, D)` to `(S, 2, K, B, bins)`: one body and L * D heads, of which the k-th
    context meets the k-th, counted from `first`.
    """

    def __init__(self, sizes: list[int], choices: int, bins: int, rngs, **others):
        super().__init__([*sizes, choices * bins], (len(rngs), 2), rngs, **others)
        self.bins = bins

    def forward(self, observations: Tensor, contexts: Tensor, first: int = 0) -> Tensor:
        count = contexts.shape[1]
        states = observations[:, None].expand(-1, count, -1, -1)
        x = torch.cat([states, contexts], -1).flatten(1, 2)[:, None]
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        heads = slice(first * self.bins, (first + count) * self.bins)
        weight, bias = (
            p[..., heads].unflatten(-1, (count, self.bins)).movedim(-2, 2)
            for p in (self.layers[-1].weight, self.layers[-1].bias)
        )
        return x.unflatten(2, (count, -1)) @ weight + bias


class Critic(nn.Module):
    """Two state values and two families of advantages."""

    def __init__(self, cfg: Config, observation_dim: int, action_dim: int, rngs):
        super().__init__()
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        others = {
            "init": networks.orthogonal(),
            "output_init": networks.orthogonal(0.01),
            "activation": torch.tanh,
        }
        self.value = networks.MLP([observation_dim, *hidden, 1], (len(rngs), 2), rngs, **others)
        sizes, choices = [observation_dim + action_dim, *hidden], cfg.levels * action_dim
        self.advantage = Advantages(sizes, choices, cfg.bins, rngs, **others)

    def values(self, observations: Tensor) -> Tensor:
        """Returns V of both networks, `(S, B, O)` to `(S, 2, B)`."""
        return self.value(observations[:, None]).squeeze(-1)


class ARSQ(Stateful):
    """ARSQ agents of S seeds. `choices` is L * D, how many make an action."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.bins = cfg, Bins(cfg.levels, cfg.bins)
        D = self.action_dim = spec.action_dim
        self.choices = cfg.levels * D
        self.normalizer = spec.normalizer
        self.critic = Critic(cfg, spec.observation_dim, D, spec.rngs).to(spec.device)
        self.target = optim.target_of(self.critic)
        self.optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self._settled = torch.ones(D, D, device=spec.device).tril(-1).bool()
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...), the demonstrations first; each loss is (S,).

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds both networks' Bellman errors, and their behaviour losses on the demonstrations."""
        taken, contexts = self.sequence(batch.actions)
        advantages = self.soft(self.critic.advantage(batch.observations, contexts))
        index = taken[:, None, ..., None].expand(-1, 2, -1, -1, 1)
        data_advantages = advantages.gather(-1, index)
        bellman, metrics = self.bellman_loss(batch, data_advantages.squeeze(-1).sum(2))
        demos = self.cfg.demos.rows
        parts = (x[:, :, :, :demos] for x in (advantages, data_advantages, index))
        behaviour = self.behaviour_loss(*parts)
        if self.cfg.behaviour_mean == "batch":
            behaviour = behaviour * (demos / taken.shape[-1])
        loss = self.cfg.bellman_weight * bellman + self.cfg.behaviour_weight * behaviour
        return loss, metrics | {"behaviour_loss": behaviour}

    def bellman_loss(self, batch: Batch, advantage: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses V + A towards r + discount * min V' at s'. `advantage` (S, 2, B) is of whole actions."""
        with torch.no_grad():
            next_value = self.target.values(batch.next_observations).amin(1)
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_value
        value = self.critic.values(batch.observations)
        q = value + advantage
        loss = (q - y[:, None]).square().mean(-1).sum(1)
        log_prob = advantage.mean((1, 2)) / self.cfg.alpha
        metrics = {"bellman_loss": loss, "q": q.mean((1, 2)), "value": value.mean((1, 2))}
        return loss, metrics | {"log_prob": log_prob}

    def behaviour_loss(self, advantages: Tensor, data: Tensor, index: Tensor) -> Tensor:
        """Sums over the choices how far the bins that were not taken come up to the one that was.

        `advantages` (S, 2, K, B, bins); `data` and `index` (S, 2, K, B, 1) are the taken bins' and their
        numbers.
        """
        cfg = self.cfg
        numbers = torch.arange(cfg.bins, device=index.device)
        taken = numbers == index
        if cfg.behaviour == "lse":
            others = (advantages / cfg.behaviour_temperature).masked_fill(taken, -torch.inf)
            height = cfg.behaviour_temperature * others.logsumexp(-1, keepdim=True)
            gaps = (height - data).clamp(min=cfg.behaviour_floor).squeeze(-1)
        else:
            gaps = (advantages - data).clamp(min=cfg.behaviour_floor)
            gaps = gaps.masked_fill(taken, 0).sum(-1) / (cfg.bins - 1)
        return gaps.sum(2).mean(-1).sum(1)

    def soft(self, raw: Tensor) -> Tensor:
        """Normalises advantages so that exp(A / alpha) sums to 1 over the bins."""
        return raw - self.cfg.alpha * (raw / self.cfg.alpha).logsumexp(-1, keepdim=True)

    def sequence(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the bins of `actions` `(S, K, B)`, and the centres before each choice `(S, K, B, D)`."""
        taken, centres = self.bins.encode(actions)
        coarse, fine = centres[..., :-1, None, :], centres[..., 1:, None, :]
        contexts = torch.where(self._settled, fine, coarse).flatten(2, 3)
        return taken.flatten(2).transpose(1, 2), contexts.transpose(1, 2)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Takes one step of both networks, and of their targets."""
        metrics = self._step(batch)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics

    # Acting: choice after choice, of all seeds and environments together.

    @torch.no_grad()
    def explore(self, observations: Tensor, uniforms: Tensor) -> Tensor:
        """Returns a sampled action: `(S, n, O)` and uniform `(S, n, L * D)` to `(S, n, D)`."""

        def sample(advantages: Tensor, number: int) -> Tensor:
            reached = torch.softmax(advantages / self.cfg.alpha, -1).cumsum(-1)
            below = reached <= uniforms[..., number, None]
            return below.sum(-1).clamp(max=self.cfg.bins - 1)

        return self._choose(self.normalizer(observations), sample)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the best bin of every choice at raw observations, `(S, n, O) -> (S, n, D)`."""
        return self._choose(self.normalizer(observations), lambda x, _: x.argmax(-1))

    def _choose(self, observations: Tensor, pick: Callable[[Tensor, int], Tensor]) -> Tensor:
        critic = self.critic if self.cfg.act_with == "online" else self.target
        centres = observations.new_zeros(*observations.shape[:-1], self.action_dim)
        for number in range(self.choices):
            level, d = divmod(number, self.action_dim)
            raw = critic.advantage(observations, centres[:, None], number)
            bin_ = pick(self.soft(raw).amin(1)[:, 0], number)
            centres[..., d] = self.bins.zoom(centres[..., d], bin_, level)
        return centres


build = ARSQ


def train(cfg: Config, run: Run) -> None:
    data, normalizer = demonstrations.load(run, cfg)
    agent = ARSQ(cfg, run.spec(data, normalizer))
    phases = Phases(cfg, run, data, agent)
    rows = Rows(cfg, run, data, phases)
    uniforms = run.uniform("choices", 1, agent.choices)
    update = compile.captured(agent.update, run.mode)
    explore = compile.captured(agent.explore, run.mode)
    state = {"agent": agent, "buffer": data, "rows": rows, "uniforms": uniforms, **phases.parts}
    for step in run.steps(**state):
        acts = phases.online(step)
        if acts:  # on the host before the update: see difference 5
            actions = phases.choose(lambda seen, _: explore(seen, uniforms.next()))
        if phases.learns(step):
            for _ in range(cfg.utd if acts else 1):
                metrics = update(rows.sample(step))
            run.log(step, metrics | phases.metrics())
        if acts:
            phases.step(actions)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
