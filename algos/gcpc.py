"""GCPC: goal-conditioned predictive coding (Zeng, Zhang, Wang and Sun 2023, NeurIPS, arXiv:2307.03406).

A transformer reads the last states and a goal, and must predict the states in between from four tokens of its
own, the slots. They hold a plan then. A policy clones actions, given the state, the goal and the slots.

    python algos/gcpc.py task=corerl/goal-maze seeds=3
    corerl train algo=gcpc task=ogbench/antmaze-large-navigate-v0 seeds=5

The losses, for C states of history, F of the future, and a goal g that the episode reaches after the C:

    slots       z = encoder(slots, g, the visible states)
    phase 1     |decoder(z, positions)_t - s_t|^2, mean over the steps before g
    phase 2     |pi(s_h, g, z) - a_h|^2, with z frozen

A window shows its first h states, C of them with probability `whole`, or else a part of C. Of these phase 1
hides a random share more (`mae_rc`). Of `steps`, the first `encoder_steps` are phase 1's.

Ours is the authors' code (brown-palm/GCPC at c75e65d) with goals that are states.

    item            authors                                       ours                      switch
 1  hidden shares   one draw for a batch                          one for each window       -
 2  rounding        10, 8, 6, 4 or 1 of 10 states are seen, for   the same                  -
                    10 (1 - 0.8) is below 2 in Python. Acting
                    meets all lengths
 3  frozen encoder  drops units while the policy learns, for      the same                  encoder_dropout
                    their trainer undoes `eval()`
 4  dropout         also inside MLPs, not of tokens               of tokens                 -
 5  first weights   equal in layers that are alike                each its own              -
 6  loss            of the features that are goals: x and y       the same                  goals.columns
 7  short episodes  give no window unless longer than C           the same                  history
 8  goals           states, and on Gym returns                    states                    -
 9  checkpoint      phase 1: best on a tenth of the data,         the last                  -
                    phase 2: best score of the last five
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.goals import GoalColumns
from corerl.buffers.trajectories import Trajectories, TrajectoryBuffer
from corerl.config import at_least, group, one_of, positive, within
from corerl.nn import compile, embeddings, networks, optim, transformer
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.training import goals, preprocessing
from corerl.training.run import Run

MISSING = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Shares of the history that have not been seen yet, or are hidden."""


@dataclass
class Config(transformer.TransformerSettings):
    knows_goals = learns_from_data = True
    name: str = "gcpc"
    label: str = "GCPC"

    encoder_steps: int = positive(52_000)  # number of first updates, of encoder and decoder
    history: int = positive(10)  # C, the most states that the encoder sees
    future: int = at_least(0, 70)  # F, number of later states that the decoder predicts
    mask: str = one_of("mae_rc", "mae_f")  # mae_rc (hides future and some history) | mae_f (future)
    whole: float = within(0.8, "[0, 1]")  # share of windows that keep all of the history

    slots: int = positive(4)
    layers: int = positive(2)  # blocks of the encoder
    decoder_layers: int = positive(1)
    heads: int = positive(4)  # attention heads per block
    width: int = positive(256)  # size of a token
    dropout: float = within(0.1, "[0, 1)")  # dropout of tokens, attention and block outputs
    encoder_dropout: bool = True  # dropout in the frozen encoder while the policy learns
    hidden_width: int = positive(1024)  # width of the policy's hidden layers

    encoder_lr: float = positive(1e-4)
    lr: float = positive(1e-3)  # learning rate of the policy
    max_grad_norm: float = positive(1.0)  # largest gradient norm of a seed, in both phases
    batch_size: int = positive(1024)
    goals: GoalColumns = group(GoalColumns)

    def first_phase(self) -> tuple[int, str]:
        return self.encoder_steps, "algo.encoder_steps"


class Coder(transformer.Trunk):
    """Blocks that look both ways: tokens `(S, B, T, width)` to the `wanted` of them."""

    def __init__(self, cfg: Config, layers: int, rngs: Sequence[torch.Generator]):
        super().__init__()
        self.rate = cfg.dropout
        options = {"attention_init": transformer.joint_xavier(cfg.width), "activation": F.gelu}
        self.blocks = nn.ModuleList(
            transformer.Block(cfg.width, cfg.heads, rngs, init=networks.torch_init, **options)
            for _ in range(layers)
        )
        self.norm = networks.LayerNorm(cfg.width, (len(rngs),))

    def forward(self, x: Tensor, valid: Tensor, wanted: slice, keys: Tensor | None) -> Tensor:
        """`valid` `(S, B, T)` bool are the tokens to look at. `keys` `(S, places)` drop units."""
        x = x + embeddings.sines(*x.shape[2:], x.device).to(x.dtype)
        return self.through_blocks(x, transformer.both_ways(valid), wanted, keys)


class TrajNet(nn.Module):
    """From visible states and a goal to slots, and from slots to all states."""

    def __init__(self, cfg: Config, sizes: goals.Sizes, rngs: Sequence[torch.Generator]):
        super().__init__()
        lead, width = (len(rngs),), cfg.width
        self.slots = embeddings.Embedding(cfg.slots, width, lead, rngs, std=1.0)
        self.embed_goal = networks.Linear(sizes.goal, width, lead, rngs)
        self.embed_state = networks.Linear(sizes.state, width, lead, rngs)
        self.encoder = Coder(cfg, cfg.layers, rngs)
        self.unknown = nn.Parameter(torch.zeros(len(rngs), 1, 1, width))
        self.decoder = Coder(cfg, cfg.decoder_layers, rngs)
        self.predict = networks.Linear(width, sizes.goal, lead, rngs)

    @property
    def places(self) -> int:
        """The places where units are dropped, those of the encoder first."""
        return self.encoder.places + self.decoder.places

    def encode(
        self, states: Tensor, goals: Tensor, visible: Tensor, keys: Tensor | None = None
    ) -> Tensor:
        """Returns the slots `(S, B, slots, width)` of `visible` `(S, B, C)` states and goals `(S, B, G)`."""
        slots = self.slots.weight[:, None].expand(-1, states.shape[1], -1, -1)
        goal = self.embed_goal(goals)[:, :, None]
        tokens = torch.cat([slots, goal, transformer.each(self.embed_state, states)], 2)
        count = slots.shape[2]
        valid = F.pad(visible, (count + 1, 0), value=True)
        keys = None if keys is None else keys[:, : self.encoder.places]
        return self.encoder(tokens, valid, slice(count), keys)

    def decode(self, slots: Tensor, length: int, keys: Tensor | None = None) -> Tensor:
        """Predicts `(S, B, length, G)` of the states from slots."""
        batch, count = slots.shape[1:3]
        tokens = torch.cat([slots, self.unknown.expand(-1, batch, length, -1)], 2)
        valid = torch.ones_like(tokens[..., 0], dtype=torch.bool)
        keys = None if keys is None else keys[:, self.encoder.places :]
        return transformer.each(self.predict, self.decoder(tokens, valid, slice(count, None), keys))


class Policy(nn.Module):
    """From a state beside its goal `(S, B, O + G)` and slots to an action."""

    def __init__(self, cfg: Config, sizes: goals.Sizes, rngs: Sequence[torch.Generator]):
        super().__init__()
        lead, width = (len(rngs),), cfg.hidden_width
        self.embed_state = networks.Linear(sizes.state + sizes.goal, width, lead, rngs)
        self.embed_slots = networks.Linear(cfg.slots * cfg.width, width, lead, rngs)
        self.body = networks.MLP([2 * width, width, sizes.action], lead, rngs)

    def forward(self, states: Tensor, slots: Tensor) -> Tensor:
        parts = self.embed_state(states, relu=True), self.embed_slots(slots.flatten(2), relu=True)
        return self.body(torch.cat(parts, -1))


class GCPC(Stateful):
    """GCPC agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, goals.Shown(spec)
        self.sizes = goals.Sizes.of(spec)
        self.trajnet = TrajNet(cfg, self.sizes, spec.rngs).to(spec.device)
        self.policy = Policy(cfg, self.sizes, spec.rngs).to(spec.device)
        self.trajnet_optimizer = optim.Adam(self.trajnet.parameters(), cfg.encoder_lr)
        self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        clipped = {"max_norm": cfg.max_grad_norm}
        trajnet, policy = self.trajnet_optimizer, self.policy_optimizer
        self._trajnet_step = GradientStep(self.prediction_loss, trajnet, spec.mode, **clipped)
        self._policy_step = GradientStep(self.policy_loss, policy, spec.mode, **clipped)
        counts = [[remaining(n, share) for share in MISSING] for n in range(cfg.history + 1)]
        self._counts = torch.tensor(counts, device=spec.device)

    # Uniform draws are (S, B, 2 + C): the lengths, and an order of the states. Each loss is (S,).

    def lengths(self, uniform: Tensor) -> Tensor:
        """Returns how many states have been seen, `(S, B)`."""
        rest = (1 - self.cfg.whole) / (len(MISSING) - 1)
        bounds = self.cfg.whole + rest * torch.arange(len(MISSING) - 1, device=uniform.device)
        return self._counts[-1][(uniform[..., :1] >= bounds).sum(-1)]

    def visible(self, uniform: Tensor) -> Tensor:
        """Returns which states phase 1 shows, `(S, B, C)` bool."""
        seen = self.lengths(uniform)[..., None]
        steps = torch.arange(self.cfg.history, device=uniform.device)
        if self.cfg.mask == "mae_f":
            return steps < seen
        share = (uniform[..., 1:2] * len(MISSING)).long()
        order = torch.where(steps < seen, uniform[..., 2:], 1.0).argsort(-1)
        return order.argsort(-1) < self._counts[seen, share]

    def prediction_loss(
        self, batch: Trajectories, uniform: Tensor, keys: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the squared error of the states, mean over those before the goals."""
        net = self.trajnet
        slots = net.encode(batch.observations, batch.goals, self.visible(uniform), keys)
        predicted = net.decode(slots, batch.valid.shape[-1], keys)
        error = (predicted - batch.achieved).square().mean(-1) * batch.valid
        loss = error.sum((1, 2)) / batch.valid.sum((1, 2))
        return loss, {"prediction_loss": loss}

    def policy_loss(
        self, batch: Trajectories, uniform: Tensor, keys: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the squared error of the action at the last state seen."""
        seen = self.lengths(uniform)
        actions = self.actions(batch.observations, batch.goals, seen, keys)
        loss = (actions - last_seen(batch.actions, seen)).square().mean((1, 2))
        return loss, {"policy_loss": loss}

    def actions(
        self, states: Tensor, goals_: Tensor, seen: Tensor, keys: Tensor | None = None
    ) -> Tensor:
        """Returns the actions `(S, B, A)` where the first `seen` `(S, B)` of the states have been seen."""
        visible = torch.arange(states.shape[2], device=states.device) < seen[..., None]
        with torch.no_grad():
            keys = keys if self.cfg.encoder_dropout else None
            slots = self.trajnet.encode(states, goals_, visible, keys)
        return self.policy(goals.beside(last_seen(states, seen), goals_), slots)

    def fit(self, batch: Trajectories, uniform: Tensor, keys: Tensor | None) -> dict[str, Tensor]:
        """Takes one step of encoder and decoder. `keys` are for dropout."""
        return self._trajnet_step(batch, uniform, keys)

    def update(
        self, batch: Trajectories, uniform: Tensor, keys: Tensor | None
    ) -> dict[str, Tensor]:
        """Takes one step of the policy."""
        return self._policy_step(batch, uniform, keys)


def remaining(length: int, missing: float) -> int:
    """Returns how many of `length` states remain, at least one, rounded as the authors' code does."""
    return max(1, int(length * (1 - missing)))


def last_seen(x: Tensor, seen: Tensor) -> Tensor:
    """Returns the entries `(S, B, ...)` of `(S, B, C, ...)` at the last of the first `seen` steps."""
    index = (seen - 1)[..., None, None].expand(-1, -1, 1, x.shape[-1])
    return x.gather(2, index).squeeze(2)


class GCPCPlayer:
    """The policy in n episodes of each seed at once, with a memory of the last states of each."""

    def __init__(self, agent: GCPC):
        self.agent = agent

    def begin(self, seeds: int, episodes: int) -> None:
        """Forgets everything."""
        size = (seeds, episodes, self.agent.cfg.history, self.agent.sizes.state)
        self._states = next(self.agent.policy.parameters()).new_zeros(size)
        self._seen = 0

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        """Returns the actions `(S, n, A)` at states and goals side by side."""
        sizes = self.agent.sizes
        state, goal = self.agent.normalizer(observations).split([sizes.state, sizes.goal], -1)
        if self._seen == self.agent.cfg.history:
            self._states = self._states.roll(-1, 2)
        self._seen = min(self._seen + 1, self.agent.cfg.history)
        self._states[:, :, self._seen - 1] = state
        seen = torch.full(state.shape[:2], self._seen, device=state.device)
        return self.agent.actions(self._states, goal, seen).clamp(-1, 1)

    def reward(self, rewards: Tensor) -> None:
        """Does nothing. Having it tells that the policy has a memory."""


build = GCPC


def parts(agent: GCPC, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated."""
    return {"policy": GCPCPlayer(agent)}


def train(cfg: Config, run: Run) -> None:
    run.cfg.policy_steps()  # raises where the first phase leaves the policy none
    data, sizes = preprocessing.vectors(run), (cfg.batch_size, cfg.history, cfg.future)
    buffer = TrajectoryBuffer(data, run.seeds, *sizes, cfg.goals.columns, run.device)
    spec = goals.spec(run, buffer)
    agent = GCPC(cfg, spec)
    uniform = run.uniform("masks", cfg.batch_size, 2 + cfg.history)
    keys = transformer.dropout_keys(run.seeds, agent.trajnet.places, run.device)
    policy = parts(agent, spec)["policy"]
    fit, update = (compile.captured(call, run.mode) for call in (agent.fit, agent.update))
    for step in run.steps(agent=agent, buffer=buffer, masks=uniform, keys=keys):
        learn = fit if step <= cfg.encoder_steps else update
        run.log(step, learn(buffer.sample(), uniform.next(), keys.next()))
        if step > cfg.encoder_steps:
            run.evaluate(step, policy)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
