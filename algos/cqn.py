"""CQN: Coarse-to-fine Q-Network (Seo, Uruc and James 2024, arXiv:2407.07787).

Q-learning for continuous actions without an actor: every dimension of an action is a choice among a few
bins, then one among the bins inside it, and so on for L levels. One dueling network gives the law of
the return of each bin of each dimension, from the state and the centres that the last level came to; an
action is the best bin of each dimension, level after level. Demonstrations are kept ahead by a margin.

    python algos/cqn.py task=corerl/pendulum steps=4000
    corerl train algo=cqn task=d4rl/hopper-medium-replay-v2 seeds=5

`steps` are those of the environment, of which the first draws on the dataset alone; phase=offline makes
them updates on the data, and phase=both begins with `online.pretrain_steps` of those.

Differences. The authors' code is their release (younggyoseo/CQN at 1932a05), whose RLBench settings are
the defaults; for vectors of state it was rewritten as ARSQ's baseline (ARSQ-main/d4rl in
mihir-chauhan/CQN-AS-Franka at fe90e72), whose settings on D4RL stand in configs/cqn.yaml.
 1. Both have two demonstration losses: stochastic dominance of the demonstrated bin's law over the others',
    and a margin between their means. They share a weight in the release and have one each in the baseline,
    which multiplies the former's in twice: its 0.1 is `dominance_weight=0.01` here.
 2. The margin's mean counts the demonstrated bin itself, whose term is constant (authors).
 3. A terminal state ends the bootstrap (release); the baseline goes on through it:
    `terminals=ignore`.
 4. Where the means of a dimension's bins differ by less than 1e-4, one is drawn at random (authors); the
    evaluated action takes the first instead.
 5. The next action is the online network's, its law the target's (authors). Acting is by the target
    network (release and baseline; the release's code for images of DM Control has the online one).
 6. Exploration adds normal noise, clipped to [-1, 1], and takes the centre of the last bin around the
    result (authors, whose clip is 1e-6 narrower).
 7. Demonstrations are half of each batch, the other half is drawn from a replay that began as the
    dataset, worst episode first, and loses those first (baseline); see algos/arsq.py.
 8. The environment makes a step, and then `utd` updates follow (release); the baseline makes an episode
    and then as many. An update reads what the replay held before its step, so that a GPU learns while
    simulators run.
 9. Left out: images, rewards of several steps (DM Control), and the release's relabelling of successful
    episodes as demonstrations.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.nn import bins, compile, networks, optim
from corerl.nn.bins import Bins
from corerl.nn.learner import Stateful
from corerl.training import demonstrations, preprocessing
from corerl.training.demonstrations import Demos, Rows
from corerl.training.offline_to_online import Online, Phases, check
from corerl.training.run import Run

TIE = 1e-4
"""Means of bins that differ by less are equal."""


@dataclass
class Config:
    name: str = "cqn"
    label: str = "CQN"

    levels: int = 3  # L
    bins: int = 5  # B, of every level
    atoms: int = 51  # of a law
    low: float = -2.0  # the smallest return that it knows
    high: float = 2.0
    critic_weight: float = 0.1  # of the distributional loss
    dominance_weight: float = 1.0  # of the demonstrations' two
    margin_weight: float = 1.0
    margin: float = 0.01  # by which a demonstrated bin's mean should be ahead

    utd: int = 1  # updates per step of the environment
    discount: float = 0.99
    terminals: str = "end"  # end | ignore
    polyak: float = 0.02  # share of the new network in the target
    noise: float = 0.01  # standard deviation of exploration
    act_with: str = "target"  # target | online

    lr: float = 5e-5
    weight_decay: float = 0.1
    batch_size: int = 256  # rows of experience, beside the demonstrations
    demos: Demos = field(default_factory=Demos)
    features: int = 64  # of a state
    hidden_layers: int = 2
    hidden_width: int = 512
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(clip_actions=1 - 1e-5)
    )

    phase: str = "online"  # online | both: after updates on the data | offline: those alone
    online: Online = field(default_factory=Online)

    def __post_init__(self):
        check(self)
        bins.check(self)
        demonstrations.check(self)
        require(self.atoms > 1, f"algo.atoms={self.atoms} must be at least 2")
        require(self.low < self.high, f"algo.low={self.low} must be below algo.high={self.high}")
        require(self.utd > 0, f"algo.utd={self.utd} must be positive")
        require(self.noise >= 0, f"algo.noise={self.noise} must not be negative")
        known = ("end", "ignore")
        require(self.terminals in known, f"algo.terminals={self.terminals} is not end or ignore")
        known = ("target", "online")
        require(self.act_with in known, f"algo.act_with={self.act_with} is not target or online")
        for name in ("critic_weight", "dominance_weight", "margin_weight"):
            value = getattr(self, name)
            require(value >= 0, f"algo.{name}={value} must not be negative")


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
    """Laws of the return of every bin, as logits of their atoms.

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
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed.

    `choices` is L * D, how many make an action.
    """

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        normalizer: nn.Module | None = None,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg, self.bins = cfg, Bins(cfg.levels, cfg.bins)
        self.action_dim, self.choices = action_dim, cfg.levels * action_dim
        self.normalizer = normalizer or nn.Identity()
        self.critic = Critic(cfg, observation_dim, action_dim, rngs).to(device)
        self.target = optim.target_of(self.critic)
        learned = [p for p in self.critic.parameters() if p.requires_grad]
        self.optimizer = optim.Adam(learned, cfg.lr, weight_decay=cfg.weight_decay)
        self.support = torch.linspace(cfg.low, cfg.high, cfg.atoms, device=device)
        self._gradients = compile.gradients(self.loss, self.optimizer.parameters, mode)

    # Losses. Batch fields are (S, B, ...), the demonstrations first, uniforms (S, B, L * D); each
    # loss is (S,).

    def loss(self, batch: Batch, uniforms: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The distributional loss, and two of the demonstrations."""
        cfg = self.cfg
        logits, taken = self._at(self.critic, batch.observations, batch.actions)
        of_data = logits.gather(-2, taken).squeeze(-2)
        goal = self.goal(batch, uniforms)
        distance = -(goal * of_data.log_softmax(-1)).sum(-1).mean((1, 2, 3))
        demos = slice(0, cfg.demos.rows)
        probs = logits[:, :, demos].softmax(-1)
        dominance, margin = self.demonstration_losses(probs, taken[:, :, demos])
        loss = cfg.critic_weight * distance + cfg.dominance_weight * dominance
        metrics = {"critic_loss": distance, "dominance_loss": dominance, "margin_loss": margin}
        metrics["q"] = self.mean(of_data).mean((1, 2, 3))
        return loss + cfg.margin_weight * margin, metrics

    @torch.no_grad()
    def goal(self, batch: Batch, uniforms: Tensor) -> Tensor:
        """The law of r + discount * Z' at s' and the online network's best action there.

        `(S, L, B, D, atoms)`, on the atoms: what falls between two goes to both by its distance.
        """
        cfg = self.cfg
        actions = self._greedy(self.critic, batch.next_observations, uniforms)
        logits, best = self._at(self.target, batch.next_observations, actions)
        probs = logits.gather(-2, best).squeeze(-2).softmax(-1)
        goes_on = 1 - batch.terminated if cfg.terminals == "end" else torch.ones_like(batch.rewards)
        reached = batch.rewards[..., None] + cfg.discount * goes_on[..., None] * self.support
        step = (cfg.high - cfg.low) / (cfg.atoms - 1)
        places = (reached.clamp(cfg.low, cfg.high) - cfg.low) / step  # (S, B, from)
        numbers = torch.arange(cfg.atoms, device=places.device, dtype=places.dtype)
        shares = (1 - (places[..., None] - numbers).abs()).clamp(min=0)  # (S, B, from, to)
        levels_last = probs.transpose(1, 2).flatten(2, 3)  # so that shares are not copied per level
        return (levels_last @ shares).unflatten(2, (cfg.levels, -1)).transpose(1, 2)

    def demonstration_losses(self, probs: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """How far the bins not demonstrated are ahead: of their laws, and of their means with a margin.

        `probs` (S, L, B, D, bins, atoms); `taken` (S, L, B, D, 1, atoms) numbers the demonstrated bins.
        """
        of_data = probs.gather(-2, taken)
        ahead = of_data.cumsum(-1) - probs.cumsum(-1)
        dominance = ahead.clamp(min=0).sum(-1).mean((1, 2, 3, 4))
        short = self.cfg.margin - (self._mean(of_data) - self._mean(probs))
        return dominance, short.clamp(min=0).mean((1, 2, 3, 4))

    def _mean(self, probs: Tensor) -> Tensor:
        return (probs * self.support).sum(-1)

    def mean(self, logits: Tensor) -> Tensor:
        """Of laws `(..., atoms)`."""
        return self._mean(logits.softmax(-1))

    def _at(self, critic: Critic, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Logits along the way to `actions`, and their bins `(S, L, B, D, 1, atoms)` to gather with."""
        taken, centres = self.bins.encode(actions)
        logits = critic(observations, centres[..., :-1, :].transpose(1, 2))
        rows = taken.transpose(1, 2)[..., None, None]
        return logits, rows.expand(-1, -1, -1, -1, 1, self.cfg.atoms)

    def update(self, batch: Batch, uniforms: Tensor) -> dict[str, Tensor]:
        """One step of the network and of its target."""
        grads, metrics = self._gradients(batch, uniforms)
        self.optimizer.step(grads)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics

    # Acting: level after level, of all seeds, environments and dimensions together.

    def _greedy(self, critic: Critic, observations: Tensor, uniforms: Tensor | None) -> Tensor:
        """The best bins' centres `(S, n, D)`; `uniforms` (S, n, L * D) choose among equal ones."""
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
        """The bin around a noisy best action: normal `noise` `(S, n, D)`, uniforms `(S, n, L * D)`."""
        best = self._greedy(self.actor, self.normalizer(observations), uniforms)
        return self.bins.rounded((best + self.cfg.noise * noise).clamp(-1, 1))

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The best action at raw observations, `(S, n, O) -> (S, n, D)`."""
        return self._greedy(self.actor, self.normalizer(observations), None)


def train(cfg: Config, run: Run) -> None:
    data, normalizer = demonstrations.load(run, cfg)
    sizes = (data.observation_dim, data.action_dim)
    agent = CQN(cfg, *sizes, run.rngs(), normalizer=normalizer, device=run.device, mode=run.mode)
    phases = Phases(cfg, run, data, agent)
    rows = Rows(cfg, run, data, phases)
    per_update = (cfg.demos.rows + cfg.batch_size, agent.choices)
    ties = seeding.uniform(run.seeds, "ties", per_update, run.device, 32)
    own = seeding.uniform(run.seeds, "ties in acting", (1, agent.choices), run.device)
    update = compile.captured(agent.update, run.mode)
    state = {"agent": agent, "buffer": data, "rows": rows, "ties": ties, "own": own}
    for step in run.steps(**state, **phases.parts):
        acts = phases.online(step)
        if acts:  # on the host before the update: see difference 8
            actions = phases.choose(lambda seen, noise: agent.explore(seen, noise, own.next()))
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
