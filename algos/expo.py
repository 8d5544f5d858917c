"""EXPO: Expressive Policy Optimization (Dong, Li, Sadigh and Finn 2025, arXiv:2507.07986).

Online RL with a flow that no gradient of Q ever touches. The flow imitates data and replay. A small Gaussian
edits its actions by at most `edit_scale`, and climbs Q with SAC's loss. Both act together, on the fly: of N
actions of the flow and their N edits, the one of the largest Q is taken, in the environment and in backups.

    python algos/expo.py task=corerl/pendulum steps=6000 algo.utd=4 algo.samples=4
    corerl train algo=expo task=adroit/pen-binary seeds=4

Critics, batches and the number of updates are RLPD's: `steps` are those of the environment, of which each has
`utd` critic updates, then one of flow, edits and temperature. With `phase=both` the flow alone is fitted to
the data first.

Of the paper we had readings of others, and of its code (pd-perry's, on ikostrikov/rlpd) the learner's file as
a public fork has it. The fork also learns `edit_scale`, which is left out here.

    item                authors                                     ours                   switch
 1  base policy         diffusion, 10 steps, residual network       a flow, 10 steps of    flow_steps
                                                                    Euler, an MLP
 2  the flow that acts  an average of it (0.001 a step); in the     the authors'           base_polyak
                        backup the flow itself
 3  the best action     by the smaller of two random targets, drawn the authors'; one draw critic_subsample
                        anew for the backup's value                 per seed and step
 4  edits are trained   at the batch's actions, not the flow's, by  the authors'           -
                        the mean of all critics
 5  entropy             in the loss of edits; no entropy in the     the authors'           -
                        backup, whatever backup_entropy says
 6  target entropy      -A/2 of the edit, its density that of       the authors'           target_entropy
                        edit_scale times a tanh
 7  bounds              edited actions are not clipped              clipped to [-1, 1]     -
 8  rate                cosine over 3,000,000 steps                 constant               -
 9  dropout in edits    0.1 on Adroit                               none                   -
10  edit_scale = 0      AntMaze from offline to online              no edits, N candidates edit_scale
11  replay at update    with the newest step                        before that step       -
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, positive, require, within
from corerl.nn import candidates, compile, ensembles, flow, networks, optim
from corerl.nn.critics import Critics, regression
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import TanhGaussian, Temperature
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Online, Phases, check_warmup
from corerl.training.random_policy import SampledPolicy
from corerl.training.run import Run


@dataclass
class Config(MLPSettings, FineTuning):
    name: str = "expo"
    label: str = "EXPO"

    samples: int = positive(8)  # N, candidate actions of the flow per state, each also edited
    edit_scale: float = at_least(0, 0.05)  # beta, largest change of an action by an edit (0: none)
    flow_steps: int = positive(10)  # Euler steps from noise to an action
    base_polyak: float = within(0.001, "[0, 1]")  # share of new weights in the flow that acts
    utd: int = positive(20)  # critic updates per environment step
    critics: int = positive(10)  # number of critics
    critic_subsample: int = positive(2)  # critics drawn to choose an action or make a backup
    layer_norm: bool = True  # LayerNorm in the critics

    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every critic update
    initial_temperature: float = positive(1.0)  # first value of the edits' entropy temperature
    target_entropy: float | None = None  # entropy of edits to reach (null: -action dimension / 2)

    actor_lr: float = positive(3e-4)  # learning rate of flow and edit policy
    critic_lr: float = positive(3e-4)
    temperature_lr: float = positive(3e-4)
    batch_size: int = positive(256)  # rows per critic update
    hidden_layers: int = at_least(0, 3)
    hidden_width: int = positive(256)
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)

    phase: str = "online"  # online | both (first fits the flow to the data)
    online: Online = group(Online, warmup_steps=5_000, offline_ratio=0.5)

    def __post_init__(self):
        super().__post_init__()
        ensembles.check(self)
        check_warmup(self)
        require(
            self.phase != "offline",
            "algo.phase=offline would train only the flow, and untrained critics would choose "
            "among its actions. Choose algo.phase=online or both",
        )

    @property
    def candidates(self) -> int:
        """Actions per state, of flow and edits."""
        return self.samples * (2 if self.edit_scale else 1)


class Draws(NamedTuple):
    """Random numbers of one step with U critic updates. All are normal but `subsets` and `times`."""

    candidates: Tensor  # (S, U, B, K, A), for the flow, then for the edits
    subsets: Tensor  # (S, U, 2, critics), uniform, for the critics that choose or make the backup
    edits: Tensor  # (S, B, A)
    path: Tensor  # (S, B, A), the start of the flow's path
    times: Tensor  # (S, B, 1), uniform


class EXPO(Stateful):
    """EXPO agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, spec.normalizer
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        self.target_entropy = -A / 2 if cfg.target_entropy is None else cfg.target_entropy
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        options = {"init": networks.xavier(), "activation": cfg.mlp_options["activation"]}
        norms = {"layer_norm": 1e-6 if cfg.layer_norm else None, "norm_first": True}
        critic = Critics([O, A, *hidden], rngs, heads=cfg.critics, **norms, **options)
        self.critic = critic.to(device)
        self.flow = flow.Velocity([O, A, *hidden], 1, rngs, **options).to(device)
        self.edit = TanhGaussian([O + A, *hidden, A], spec.lead, rngs, **options).to(device)
        self.target, self.base = optim.target_of(self.critic), optim.target_of(self.flow)
        self.temperature = Temperature(spec.seeds, cfg.initial_temperature).to(device)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        v = self.flow_optimizer = optim.Adam(self.flow.parameters(), cfg.actor_lr)
        e = self.edit_optimizer = optim.Adam(self.edit.parameters(), cfg.actor_lr)
        alpha = optim.Adam(self.temperature.parameters(), cfg.temperature_lr)
        self.temperature_optimizer = alpha
        self._critic_step = GradientStep(self.critic_loss, q, spec.mode)
        self._flow_step = GradientStep(self.flow_loss, v, spec.mode)
        self._edit_step = GradientStep(self.edit_loss, (e, alpha), spec.mode)

    # The policy.

    @torch.no_grad()
    def propose(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Makes an action of noise by the flow alone, `(S, n, O)` and `(S, n, A)` to `(S, n, A)`."""
        field = partial(self.base, self.normalizer(observations))
        return flow.euler(field, noise, self.cfg.flow_steps).clamp(-1, 1)

    def candidates(self, base: flow.Velocity, observations: Tensor, noise: Tensor) -> Tensor:
        """Makes candidates `(S, n, K, A)` at `(S, n, O)`, of noise `(S, n, K, A)`: the flow's, then edits."""
        count = self.cfg.samples
        states = candidates.per_candidate(observations, count)
        of_flow, of_edits = noise[:, :, :count].flatten(1, 2), noise[:, :, count:].flatten(1, 2)
        actions = flow.euler(partial(base, states), of_flow, self.cfg.flow_steps).clamp(-1, 1)
        made = [actions]
        if self.cfg.edit_scale:
            made.append(self.edited(states, actions, of_edits)[0])
        return torch.cat([x.unflatten(1, (-1, count)) for x in made], 2)

    def edited(self, observations: Tensor, actions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Edits actions `(S, n, A)`. Also returns the log-density `(S, n)` of the edits."""
        edits, log_prob = self.edit.sample(torch.cat([observations, actions], -1), noise)
        scale = self.cfg.edit_scale
        edited = (actions + scale * edits).clamp(-1, 1)
        return edited, log_prob - actions.shape[-1] * math.log(scale)

    def choose(self, observations: Tensor, actions: Tensor, uniforms: Tensor) -> Tensor:
        """Takes the best of candidates `(S, n, K, A)` by a few target critics, drawn by `(S, critics)`."""
        subset = ensembles.subset(uniforms, self.cfg.critics, self.cfg.critic_subsample)
        states = candidates.per_candidate(observations, actions.shape[2])
        q = ensembles.call(self.target, subset, states, actions.flatten(1, 2)).amin(1)
        return candidates.best(actions, q.unflatten(-1, (-1, actions.shape[2])))

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Acts on the fly, from normal noise `(S, n, K * A + critics)`, whose ranks draw the critics."""
        states, A = self.normalizer(observations), self.edit.body.layers[-1].weight.shape[-1] // 2
        made = noise[..., : self.cfg.candidates * A].unflatten(-1, (-1, A))
        actions = self.candidates(self.base, states, made)
        return self.choose(states, actions, noise[:, 0, -self.cfg.critics :])

    # Losses. Batch fields are (S, B, ...); each loss is (S,).

    def critic_loss(
        self, batch: Batch, noise: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses all critics towards r + discount * min Q' of a few, at the action taken on the fly."""
        cfg, states = self.cfg, batch.next_observations
        with torch.no_grad():
            actions = self.choose(states, self.candidates(self.flow, states, noise), uniforms[:, 0])
            subset = ensembles.subset(uniforms[:, 1], cfg.critics, cfg.critic_subsample)
            value = ensembles.call(self.target, subset, states, actions).amin(1)
            y = batch.rewards + cfg.discount * (1 - batch.terminated) * value
        return regression(self.critic(batch.observations, batch.actions), y)

    def flow_loss(
        self, batch: Batch, noise: Tensor, times: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Imitates the batch, whoever acted in it."""
        field = partial(self.flow, batch.observations)
        loss = flow.matching_error(field, batch.actions, noise, times).mean(-1)
        return loss, {"flow_loss": loss}

    def edit_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Climbs the mean of all critics from the batch's actions, with SAC's entropy and temperature."""
        actions, log_prob = self.edited(batch.observations, batch.actions, noise)
        q = self.critic(batch.observations, actions).mean(1)
        alpha, entropy = self.temperature(), -log_prob.mean(-1)
        edit_loss = (alpha.detach()[:, None] * log_prob - q).mean(-1)
        loss = edit_loss + alpha * (entropy.detach() - self.target_entropy)
        return loss, {"edit_loss": edit_loss, "entropy": entropy, "temperature": alpha}

    def fit(self, batch: Batch, noise: Tensor, times: Tensor) -> dict[str, Tensor]:
        """Takes one step of the flow."""
        metrics = self._flow_step(batch, noise, times)
        optim.polyak(self.base, self.flow, self.cfg.base_polyak)
        return metrics

    def update(self, batches: list[Batch], draws: Draws) -> dict[str, Tensor]:
        """Takes one critic step per batch. Flow, edits and temperature follow on the last."""
        for i, batch in enumerate(batches):
            metrics = self._critic_step(batch, draws.candidates[:, i], draws.subsets[:, i])
            optim.polyak(self.target, self.critic, self.cfg.polyak)
        metrics |= self.fit(batch, draws.path, draws.times)
        if self.cfg.edit_scale:
            metrics |= self._edit_step(batch, draws.edits)
        return metrics


build = EXPO


def noise_shape(cfg: Config, actions: int) -> tuple[int]:
    """Returns the shape of the noise of one action that is taken on the fly."""
    return (cfg.candidates * actions + cfg.critics,)


def parts(agent: EXPO, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated, which acts on the fly."""
    shape = noise_shape(agent.cfg, spec.action_dim)
    return {"policy": SampledPolicy(agent.explore, shape, spec.identities)}


def train(cfg: Config, run: Run) -> None:
    data, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    spec = run.spec(data, normalizer)
    agent, A, B = EXPO(cfg, spec), spec.action_dim, cfg.batch_size
    phases = Phases(cfg, run, data, agent, noise=noise_shape(cfg, A))
    made = run.normal("candidates", cfg.utd, B, cfg.candidates, A, block=4)
    subsets = run.uniform("asked", cfg.utd, 2, cfg.critics)
    normal, times = run.normal("noise", 2, B, A), run.uniform("times", B, 1)
    state = {"agent": agent, "buffer": data, "made": made, "asked": subsets, "noise": normal}
    state |= {"times": times} | parts(agent, spec) | phases.parts
    fit, update, explore = (
        compile.captured(function, run.mode)
        for function in (agent.fit, agent.update, agent.explore)
    )
    for step in run.steps(**state):
        learns, acts = phases.learns(step), phases.online(step)
        if acts:
            actions = phases.choose(explore)  # on the host before the update: see difference 11
        if learns and acts:
            batches = [phases.sample(step) for _ in range(cfg.utd)]
            draws = Draws(made.next(), subsets.next(), *normal.next().unbind(1), times.next())
            run.log(step, update(batches, draws) | phases.metrics())
        elif learns:
            run.log(step, fit(phases.sample(step), normal.next()[:, 1], times.next()))
        if acts:
            phases.step(actions)
        run.evaluate(step, state["policy"])
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
