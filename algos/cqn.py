"""CQN: Coarse-to-fine Q-Network (Seo, Uruc and James 2024, arXiv:2407.07787).

Q-learning for continuous actions without an actor: every dimension of an action is a choice among a few
bins, then one among the bins inside it, and so on for L levels. One dueling network gives the distribution of
the return of each bin of each dimension, from the state and the centres that the last level came to; an
action is the best bin of each dimension, level after level. Demonstrations are kept ahead by a margin.

    python algos/cqn.py task=corerl/pendulum steps=4000
    corerl train algo=cqn task=d4rl/hopper-medium-replay-v2 seeds=5

`steps` are those of the environment, of which the first draws on the dataset alone; phase=offline makes
them updates on the data, and phase=both begins with `online.pretrain_steps` of those.

What differs. The authors' code is their release (younggyoseo/CQN at 1932a05), whose RLBench settings are
the defaults; for vectors of state it was rewritten as ARSQ's baseline (ARSQ-main/d4rl in
mihir-chauhan/CQN-AS-Franka at fe90e72), whose settings on D4RL stand in configs/cqn.yaml.

    item                release                    baseline                   ours             switch
 1  demonstration loss  two, of one weight         one weight each, one of    one each         dominance_...,
                                                   them multiplied in twice                    margin_weight
 2  margin's mean       counts the demonstrated    the same                   the same         -
                        bin
 3  terminal state      ends the bootstrap         does not                   release's        terminals
 4  tie of bins' means  below 1e-4, one at random  the same                   the same         -
 5  next action         the online network's, its  the same                   the same         -
                        distribution the target's
    acts                target; DM Control online  target                     target           act_with
 6  exploration         noise, clipped 1e-6        the same                   clipped to it    noise
                        inside [-1, 1]
 7  batch               -                          half demonstrations        baseline's       demos
 8  updates             `utd` after a step         after an episode           release's, on    utd
                                                                              earlier replay
 9  images, n-step,     yes                        -                          left out         -
    relabelling

The losses (1) are stochastic dominance of the demonstrated bin's distribution over the others', and a
margin between their means; the baseline's 0.1 of the former is `dominance_weight=0.01` here. The term of
the bin itself (2) is constant. The evaluated action takes the first of equal bins (4). Exploration takes
the centre of the last bin around the noisy action (6). The other half of a batch (7) is drawn from a
replay that began as the dataset, worst episode first, and loses those first; see algos/arsq.py. A GPU
learns while simulators run (8). Rewards of several steps are DM Control's; relabelling makes successful
episodes demonstrations (9).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, require, within
from corerl.nn import bins, compile, networks, optim
from corerl.nn.bins import Bins
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.training import demonstrations, preprocessing
from corerl.training.demonstrations import Demos, Rows
from corerl.training.offline_to_online import FineTuning, Online, Phases
from corerl.training.run import Run

TIE = 1e-4
"""Means of bins that differ by less are equal."""


@dataclass
class Config(FineTuning):
    learns_from_data = True  # demonstrations are in every batch

    name: str = "cqn"
    label: str = "CQN"

    levels: int = positive(3)  # L, number of levels (each one splits the bin chosen before)
    bins: int = at_least(2, 5)  # B, number of bins per level and action dimension
    atoms: int = at_least(2, 51)  # atoms of each bin's return distribution
    low: float = -2.0  # smallest return of a distribution's atoms
    high: float = 2.0  # largest return of a distribution's atoms
    critic_weight: float = at_least(0, 0.1)  # weight of the distributional Bellman loss
    dominance_weight: float = at_least(0, 1.0)  # weight of the dominance loss on demonstrations
    margin_weight: float = at_least(0, 1.0)  # weight of the margin loss on demonstrations
    margin: float = 0.01  # lead in mean return that a demonstrated bin should have

    utd: int = positive(1)  # updates per environment step
    discount: float = within(0.99, "[0, 1]")
    terminals: str = one_of("end", "ignore")  # end (no bootstrap at terminals) | ignore (baseline)
    polyak: float = within(0.02, "[0, 1]")  # share of new weights in the target, every update
    noise: float = at_least(0, 0.01)  # standard deviation of the exploration noise
    act_with: str = one_of("target", "online")  # acting network, target | online (as on DM Control)

    lr: float = positive(5e-5)
    weight_decay: float = at_least(0, 0.1)
    batch_size: int = positive(256)  # replay rows per batch, besides demos.rows demonstrations
    demos: Demos = group(Demos)
    features: int = positive(64)  # size of the first layer's output for a state
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(512)
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)

    phase: str = "online"  # online | both (offline, then online) | offline (updates on data only)
    online: Online = group(Online)

    def __post_init__(self):
        super().__post_init__()
        bins.check(self)
        demonstrations.check(self)
        require(self.low < self.high, f"algo.low={self.low} must be below algo.high={self.high}")


class Branch(nn.Module):
    """Features of a state, then a network on them, the level's centres and which level it is.

    `(S, B, O)` and `(S, K, B, D + L)` to `(S, K, B, out)`. Layers before a normalisation have no bias.
    """

    def __init__(self, cfg: Config, observation_dim: int, action_dim: int, out: int, rngs):
        super().__init__()
        lead, init = (len(rngs),), networks.orthogonal(1.0)
        self.features = networks.Linear(observation_dim, cfg.features, lead, rngs, init)
        self.norm = networks.LayerNorm(cfg.features, lead)
        inputs = cfg.features + action_dim + cfg.levels
        self.body = networks.MLP(
            [inputs, *[cfg.hidden_width] * cfg.hidden_layers, out],
            lead,
            rngs,
            init=init,
            output_init=networks.normal(0.0),
            layer_norm=1e-5,
            norm_first=True,
            activation=F.silu,
        )
        for layer in (self.features, *self.body.layers[:-1]):
            layer.bias.requires_grad_(False)

    def forward(self, observations: Tensor, places: Tensor) -> Tensor:
        count = places.shape[1]
        features = torch.tanh(self.norm(self.features(observations)))
        x = torch.cat([features[:, None].expand(-1, count, -1, -1), places], -1)
        return self.body(x.flatten(1, 2)).unflatten(1, (count, -1))


class Critic(nn.Module):
    """Distributions of the return of every bin, as logits of their atoms.

    `(S, B, O)` and the centres `(S, K, B, D)` of K levels, counted from `first`, to
    `(S, K, B, D, bins, atoms)`.
    """

    def __init__(self, cfg: Config, observation_dim: int, action_dim: int, rngs):
        super().__init__()
        sizes = (observation_dim, action_dim)
        atoms, self.shape = cfg.atoms, (action_dim, cfg.bins, cfg.atoms)
        self.value = Branch(cfg, *sizes, action_dim * atoms, rngs)
        self.advantage = Branch(cfg, *sizes, action_dim * cfg.bins * atoms, rngs)
        self.register_buffer("levels", torch.eye(cfg.levels)[:, None], persistent=False)

    def forward(self, observations: Tensor, centres: Tensor, first: int = 0) -> Tensor:
        seeds, count, batch, _ = centres.shape
        level = self.levels[first : first + count].expand(seeds, -1, batch, -1)
        places = torch.cat([centres, level], -1)
        value = self.value(observations, places).unflatten(-1, (self.shape[0], 1, self.shape[2]))
        advantage = self.advantage(observations, places).unflatten(-1, self.shape)
        return value + advantage - advantage.mean(-2, keepdim=True)


class CQN(Stateful):
    """CQN agents of S seeds. `choices` is L * D, how many make an action."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.bins = cfg, Bins(cfg.levels, cfg.bins)
        self.action_dim, self.choices = spec.action_dim, cfg.levels * spec.action_dim
        self.normalizer = spec.normalizer
        sizes = (spec.observation_dim, spec.action_dim)
        self.critic = Critic(cfg, *sizes, spec.rngs).to(spec.device)
        self.target = optim.target_of(self.critic)
        learned = [p for p in self.critic.parameters() if p.requires_grad]
        self.optimizer = optim.Adam(learned, cfg.lr, weight_decay=cfg.weight_decay)
        self._support = torch.linspace(cfg.low, cfg.high, cfg.atoms, device=spec.device)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    # Losses. Batch fields are (S, B, ...), the demonstrations first, uniforms (S, B, L * D); each
    # loss is (S,).

    def loss(self, batch: Batch, uniforms: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Sums the distributional loss and two of the demonstrations."""
        cfg = self.cfg
        logits, taken = self._at(self.critic, batch.observations, batch.actions)
        data_logits = logits.gather(-2, taken).squeeze(-2)
        goal = self.goal(batch, uniforms)
        distance = -(goal * data_logits.log_softmax(-1)).sum(-1).mean((1, 2, 3))
        demos = slice(0, cfg.demos.rows)
        probs = logits[:, :, demos].softmax(-1)
        dominance, margin = self.demonstration_losses(probs, taken[:, :, demos])
        loss = cfg.critic_weight * distance + cfg.dominance_weight * dominance
        metrics = {"critic_loss": distance, "dominance_loss": dominance, "margin_loss": margin}
        metrics["q"] = self.mean(data_logits).mean((1, 2, 3))
        return loss + cfg.margin_weight * margin, metrics

    @torch.no_grad()
    def goal(self, batch: Batch, uniforms: Tensor) -> Tensor:
        """Returns the distribution of r + discount * Z' at s' and the online network's best action there.

        `(S, L, B, D, atoms)`, on the atoms: what falls between two goes to both by its distance.
        """
        cfg = self.cfg
        actions = self._greedy(self.critic, batch.next_observations, uniforms)
        logits, best = self._at(self.target, batch.next_observations, actions)
        probs = logits.gather(-2, best).squeeze(-2).softmax(-1)
        goes_on = 1 - batch.terminated if cfg.terminals == "end" else torch.ones_like(batch.rewards)
        reached = batch.rewards[..., None] + cfg.discount * goes_on[..., None] * self._support
        step = (cfg.high - cfg.low) / (cfg.atoms - 1)
        places = (reached.clamp(cfg.low, cfg.high) - cfg.low) / step  # (S, B, from)
        numbers = torch.arange(cfg.atoms, device=places.device, dtype=places.dtype)
        shares = (1 - (places[..., None] - numbers).abs()).clamp(min=0)  # (S, B, from, to)
        levels_last = probs.transpose(1, 2).flatten(2, 3)  # so that shares are not copied per level
        return (levels_last @ shares).unflatten(2, (cfg.levels, -1)).transpose(1, 2)

    def demonstration_losses(self, probs: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """Measures by how much bins not demonstrated lead: in distribution, and in mean with a margin.

        `probs` (S, L, B, D, bins, atoms); `taken` (S, L, B, D, 1, atoms) numbers the demonstrated bins.
        """
        demonstrated = probs.gather(-2, taken)
        ahead = demonstrated.cumsum(-1) - probs.cumsum(-1)
        dominance = ahead.clamp(min=0).sum(-1).mean((1, 2, 3, 4))
        short = self.cfg.margin - (self._mean(demonstrated) - self._mean(probs))
        return dominance, short.clamp(min=0).mean((1, 2, 3, 4))

    def _mean(self, probs: Tensor) -> Tensor:
        return (probs * self._support).sum(-1)

    def mean(self, logits: Tensor) -> Tensor:
        """Returns the means of distributions given as logits `(..., atoms)`."""
        return self._mean(logits.softmax(-1))

    def _at(self, critic: Critic, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits on the way to `actions`, and their bins `(S, L, B, D, 1, atoms)` to gather with."""
        taken, centres = self.bins.encode(actions)
        logits = critic(observations, centres[..., :-1, :].transpose(1, 2))
        rows = taken.transpose(1, 2)[..., None, None]
        return logits, rows.expand(-1, -1, -1, -1, 1, self.cfg.atoms)

    def update(self, batch: Batch, uniforms: Tensor) -> dict[str, Tensor]:
        """Steps the network and its target."""
        metrics = self._step(batch, uniforms)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics

    # Acting: level after level, of all seeds, environments and dimensions together.

    def _greedy(self, critic: Critic, observations: Tensor, uniforms: Tensor | None) -> Tensor:
        """Finds the best bins' centres `(S, n, D)`. `uniforms` (S, n, L * D) choose among equal ones."""
        centres = observations.new_zeros(*observations.shape[:-1], self.action_dim)
        for level in range(self.cfg.levels):
            q = self.mean(critic(observations, centres[:, None], level)[:, 0])
            best = q.argmax(-1)
            if uniforms is not None:
                drawn = uniforms.unflatten(-1, (self.cfg.levels, -1))[..., level, :]
                tied = q.amax(-1) - q.amin(-1) < TIE
                best = torch.where(tied, (drawn * self.cfg.bins).long(), best)
            centres = self.bins.zoom(centres, best, level)
        return centres

    @property
    def actor(self) -> Critic:
        """The network that acts."""
        return self.target if self.cfg.act_with == "target" else self.critic

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor, uniforms: Tensor) -> Tensor:
        """Returns the bin around a noisy best action: `noise` `(S, n, D)`, uniforms `(S, n, L * D)`."""
        best = self._greedy(self.actor, self.normalizer(observations), uniforms)
        return self.bins.rounded((best + self.cfg.noise * noise).clamp(-1, 1))

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the best action at raw observations, `(S, n, O) -> (S, n, D)`."""
        return self._greedy(self.actor, self.normalizer(observations), None)


build = CQN


def train(cfg: Config, run: Run) -> None:
    data, normalizer = demonstrations.load(run, cfg)
    agent = CQN(cfg, run.spec(data, normalizer))
    phases = Phases(cfg, run, data, agent)
    rows = Rows(cfg, run, data, phases)
    per_update = (cfg.demos.rows + cfg.batch_size, agent.choices)
    ties = seeding.uniform(run.seeds, "ties", per_update, run.device, 32)
    own = seeding.uniform(run.seeds, "ties in acting", (1, agent.choices), run.device)
    update = compile.captured(agent.update, run.mode)
    explore = compile.captured(agent.explore, run.mode)
    state = {"agent": agent, "buffer": data, "rows": rows, "ties": ties, "own": own}
    for step in run.steps(**state, **phases.parts):
        acts = phases.online(step)
        if acts:  # on the host before the update: see difference 8
            actions = phases.choose(lambda seen, noise: explore(seen, noise, own.next()))
        if phases.learns(step):
            for _ in range(cfg.utd if acts else 1):
                metrics = update(rows.sample(step), ties.next())
            run.log(step, metrics | phases.metrics())
        if acts:
            phases.step(actions)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
