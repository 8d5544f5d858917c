"""Decision Transformer (Chen et al. 2021, arXiv:2106.01345).

Offline RL as sequence modelling: a causal transformer reads (return-to-go, state, action) of the last
K steps and is trained to name the action; at evaluation the return-to-go is the return one asks for.

    python algos/dt.py task=corerl/pendulum steps=2000 eval.every=2000 eval.episodes=10
    python algos/dt.py task=corerl/cartpole steps=2000 seeds=3
    corerl train algo=dt task=d4rl/hopper-medium-v2 seeds=3

Discrete actions are read one-hot and named by their logits, with the cross-entropy as loss.
The default is the authors' Gym code; `table=dt_corl` is CORL's settings, which made CORL's scores.

What differs, and its switch:

    item            authors' Gym code, ours                    CORL                   switch
 1  heads           of actions; those of states, returns       the same               -
                    carry no loss and are left out
 2  padding         left; states 0, actions -10: never looked  right                  padding
                    at, so that no number depends on it
 3  loss            mean over steps that are no padding        over K, padding too    loss_over
 4  initialisation  N(0, 0.02) in the blocks, torch's in       N(0, 0.02) in all but  init, activation
                    the embeddings; ReLU                       query, key and value:
                                                               Xavier's; GELU
 5  cut episode     dropped; ours: kept                        dropped                -
 6  target returns  not said; ours: the best in the data       scores of the largest  targets
                    where none; others' to metrics.jsonl
 7  last block      all tokens; ours: state tokens, the        all tokens             -
                    numbers are the same
 8  dropout         torch's; ours: one key a seed and place    torch's                -
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.sequences import ContextWindow, Windows
from corerl.config import added, at_least, group, one_of, positive, require, within
from corerl.data.dataset import Dataset
from corerl.nn import compile, embeddings, networks, optim, transformer
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.policies import categorical_log_prob
from corerl.training.run import Run
from corerl.training.weighting import Weighting
from corerl.training.windows import load_windows


@dataclass
class Config(transformer.TransformerSettings):
    actions = "any"
    name: str = "dt"
    label: str = "DT"

    context: int = positive(20)  # K, steps that the transformer sees (three tokens each)
    targets: list[float] | None = None  # target returns, unscaled (null: the best in the data)
    return_scale: float = positive(1000.0)  # returns-to-go are divided by this
    max_timestep: int = positive(1000)  # size of the timestep embedding (later steps count as last)

    layers: int = positive(3)  # transformer blocks
    heads: int = positive(1)  # attention heads per block
    width: int = positive(128)  # size of a token
    activation: str = one_of("relu", "gelu")  # relu (authors) | gelu (CORL), in the blocks
    dropout: float = within(0.1, "[0, 1)")  # dropout of embeddings, attention and block outputs
    init: str = one_of("official", "corl")  # initial weights, official (authors) | corl (CORL)

    lr: float = positive(1e-4)
    warmup_steps: int = positive(10_000)  # updates in which the learning rate rises (then constant)
    weight_decay: float = at_least(0, 1e-4)  # weight decay of all parameters
    max_grad_norm: float = positive(0.25)  # largest gradient norm of a seed's parameters
    batch_size: int = positive(64)
    padding: str = one_of("left", "right")  # padded side of windows, left (authors) | right (CORL)
    loss_over: str = one_of("valid", "all")  # valid (real steps, authors) | all (padding too, CORL)
    data: Weighting = added(group(Weighting))

    def __post_init__(self):
        super().__post_init__()
        require(
            self.targets is None or len(self.targets) > 0,
            "algo.targets=[] must have at least one target return",
        )


class Transformer(transformer.Trunk):
    """From windows `(S, B, K, ...)` to the action at each of their steps, `(S, B, K, A)`, or its logits.

    With `conditions` its first token of a step reads that many numbers in place of the return-to-go. The
    windows then have `returns_to_go` `(S, B, K, conditions)`.
    """

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        discrete: bool = False,
        conditions: int | None = None,
    ):
        super().__init__()
        self.conditions = conditions
        self.bound = (lambda logits: logits) if discrete else torch.tanh
        lead, width = (len(rngs),), cfg.width
        small = networks.normal(0.02)
        outside = small if cfg.init == "corl" else networks.torch_init
        inside = transformer.joint_xavier(width)
        self.rate = cfg.dropout
        self.embed_return = networks.Linear(conditions or 1, width, lead, rngs, outside)
        self.embed_state = networks.Linear(observation_dim, width, lead, rngs, outside)
        self.embed_action = networks.Linear(action_dim, width, lead, rngs, outside)
        self.embed_time = embeddings.Embedding(
            cfg.max_timestep, width, lead, rngs, std=0.02 if cfg.init == "corl" else 1.0
        )
        self.embed_norm = networks.LayerNorm(width, lead)
        self.blocks = nn.ModuleList(
            transformer.Block(
                width,
                cfg.heads,
                rngs,
                init=small,
                attention_init=inside if cfg.init == "corl" else None,
                activation=F.relu if cfg.activation == "relu" else F.gelu,
            )
            for _ in range(cfg.layers)
        )
        self.norm = networks.LayerNorm(width, lead)
        self.action = networks.Linear(width, action_dim, lead, rngs, outside)

    def forward(self, windows: Windows, keys: Tensor | None = None) -> Tensor:
        """Returns the actions. `keys` `(S, places)` int32 drop units, None for evaluation."""
        allowed = transformer.causal((windows.valid > 0).repeat_interleave(3, dim=2))
        return self.actions(self.tokens(windows), allowed, slice(1, None, 3), keys)

    def tokens(self, windows: Windows) -> Tensor:
        """Embeds return-to-go, state and action of every step, `(S, B, 3 K, width)`."""
        each = transformer.each
        time = self.embed_time(windows.timesteps)
        asked = windows.returns_to_go
        tokens = [
            each(self.embed_return, asked if self.conditions else asked[..., None]) + time,
            each(self.embed_state, windows.observations) + time,
            each(self.embed_action, windows.actions) + time,
        ]
        return each(self.embed_norm, torch.stack(tokens, 3).flatten(2, 3))

    def actions(
        self, x: Tensor, allowed: Tensor, states: slice, keys: Tensor | None = None
    ) -> Tensor:
        """Returns the actions at the tokens `states`. Each token looks at those `allowed` `(S, B, T, T)`."""
        x = self.through_blocks(x, allowed, states, keys)
        return self.bound(transformer.each(self.action, x))

    def branches(self, windows: Windows, last: Tensor) -> Tensor:
        """Returns the last step's actions `(S, B, R, A)`, had its return-to-go been `last` `(S, B, R)`.

        What came before is computed once; the last return-to-go and state of each stand behind it as a
        branch of their own.
        """
        tokens = self.tokens(windows)
        past, state = tokens[:, :, :-3], tokens[:, :, -2, None]
        returns = transformer.each(self.embed_return, last[..., None])
        returns = returns + self.embed_time(windows.timesteps[:, :, -1:])
        returns = transformer.each(self.embed_norm, returns)
        ends = torch.stack([returns, state.expand_as(returns)], 3).flatten(2, 3)
        valid = (windows.valid[:, :, :-1] > 0).repeat_interleave(3, dim=2)
        allowed = transformer.branching(valid, last.shape[2], 2)
        return self.actions(torch.cat([past, ends], 2), allowed, slice(past.shape[2] + 1, None, 2))

    def context(self, lead: tuple[int, int], length: int) -> ContextWindow:
        """Makes a memory of the last `length` steps, for a policy that acts in `lead` = (S, n) episodes."""
        sizes = self.embed_state.weight.shape[1], self.action.weight.shape[2]
        last = self.embed_time.weight.shape[1] - 1
        return ContextWindow(lead, length, *sizes, last_timestep=last, like=self.norm.weight)


class DT(Stateful):
    """DT agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec, network: Callable[..., nn.Module] = Transformer):
        """`network` makes the policy's network, of `Transformer`'s first four arguments and `discrete`."""
        self.cfg, self.discrete = cfg, spec.discrete
        sizes = spec.observation_dim, spec.action_dim
        self.transformer = network(cfg, *sizes, spec.rngs, spec.discrete).to(spec.device)
        self.normalizer = spec.normalizer
        self.optimizer = optim.Adam(
            self.transformer.parameters(), cfg.lr, weight_decay=cfg.weight_decay
        )
        self.schedule = optim.Schedule(self.optimizer, optim.warmup(cfg.warmup_steps))
        clipped = {"max_norm": cfg.max_grad_norm}
        self._step = GradientStep(self.loss, self.optimizer, spec.mode, self.schedule, **clipped)

    def loss(self, windows: Windows, keys: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the actions' squared error, or cross-entropy, mean over a seed's steps and dimensions."""
        loss = self.imitation(self.transformer(windows, keys), windows)
        return loss, {"loss": loss}

    def imitation(self, actions: Tensor, windows: Windows) -> Tensor:
        """Returns the mean distance `(S,)` of actions, or of logits, to those of the windows."""
        if self.discrete:
            return self.mean(-categorical_log_prob(actions, windows.actions), windows.valid)
        return self.mean((actions - windows.actions).square().mean(-1), windows.valid)

    def mean(self, per_step: Tensor, valid: Tensor) -> Tensor:
        """Averages numbers `(S, B, K)` over each seed's steps, as `loss_over` says."""
        per_step = per_step * valid
        if self.cfg.loss_over == "valid":
            return per_step.sum((1, 2)) / valid.sum((1, 2))
        return per_step.mean((1, 2))

    def update(self, windows: Windows, keys: Tensor | None) -> dict[str, Tensor]:
        """Takes one step. `keys` are for dropout."""
        return self._step(windows, keys)

    def player(self, target: float) -> "DTPlayer":
        """Makes a policy that asks for the return `target`, raw."""
        return DTPlayer(self, target)


class DTPlayer:
    """A policy in n episodes of each seed at once, with a memory of the last K steps of each."""

    def __init__(self, agent: DT, target: float):
        self.agent, self.target = agent, target

    def begin(self, seeds: int, episodes: int) -> None:
        """Forgets everything, and asks for the target again. Padding is 0, after normalisation."""
        cfg, network = self.agent.cfg, self.agent.transformer
        self._context = network.context((seeds, episodes), cfg.context)
        target = self.target / cfg.return_scale
        self._ask = next(network.parameters()).new_full((seeds, episodes), target)

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        """Returns the action at raw observations, `(S, n, O) -> (S, n, A)`. Numbers `(S, n)`."""
        windows = self._context.observe(self.agent.normalizer(observations), self._ask)
        actions = self.agent.transformer(windows)[:, :, -1]
        best = actions.argmax(-1)
        if self.agent.discrete:
            actions = F.one_hot(best, actions.shape[-1]).to(actions.dtype)
        self._context.record_actions(actions)
        return best if self.agent.discrete else actions

    def reward(self, rewards: Tensor) -> None:
        """Subtracts what was earned, `(S, n)` raw, from what is asked for."""
        self._ask = self._ask - rewards / self.agent.cfg.return_scale


build = DT


def parts(agent: DT, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated, which asks for the largest target, and those of the others."""
    largest, *others = map(agent.player, spec.facts["targets"])
    return {"policy": largest, "also": {f"target {p.target:g}": p for p in others}}


def facts(cfg: Config, dataset: Dataset) -> dict[str, Any]:
    """Returns the targets: those of the settings, or else the best return in the data."""
    return {
        "targets": sorted(cfg.targets or [float(dataset.episode_returns().max())], reverse=True)
    }


def train(cfg: Config, run: Run) -> None:
    dataset, buffer, normalizer = load_windows(cfg, run)
    spec = run.spec(buffer, normalizer, facts=facts(cfg, dataset))
    agent = DT(cfg, spec)
    keys = transformer.dropout_keys(run.seeds, agent.transformer.places, run.device)
    players = parts(agent, spec)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, buffer=buffer, keys=keys):
        metrics = update(buffer.sample(), keys.next())
        run.log(step, metrics)
        run.evaluate(step, players["policy"], players["also"])
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
