"""CORL's ReBRAC, which is written in JAX, beside ours in `lockstep.py`: `pip install jax flax optax chex`.

Compared with the normalisation layers' scales and shifts, with CORL's default coefficients of 1.
"""

import argparse
from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import optax
import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.algos import rebrac
from corerl.buffers.replay import Batch
from corerl.nn.learner import Spec

jax.config.update("jax_enable_x64", True)


class Theirs:
    """CORL's actor and critics, their targets and optimisers, one update at a call."""

    def __init__(self, corl: SimpleNamespace, sizes: tuple[int, int], cfg: rebrac.Config):
        observation, action = (np.zeros((1, size)) for size in sizes)
        actor, critic = corl.DetActor(sizes[1], layernorm=False), corl.EnsembleCritic(num_critics=2)
        self.actor = _state(corl.ActorTrainState, actor, cfg.actor_lr, observation)
        self.critic = _state(corl.CriticTrainState, critic, cfg.critic_lr, observation, action)
        names = [
            "critic_loss",
            "q_min",
            "actor_loss",
            "bc_mse_policy",
            "bc_mse_random",
            "action_mse",
        ]
        common = {
            "metrics": corl.Metrics.create(names),
            "gamma": cfg.discount,
            "actor_bc_coef": cfg.actor_bc_coef,
            "critic_bc_coef": cfg.critic_bc_coef,
            "tau": cfg.polyak,
            "policy_noise": cfg.policy_noise,
            "noise_clip": cfg.noise_clip,
        }
        self.both = _compiled(corl.update_td3, common | {"normalize_q": cfg.normalize_q})
        self.critic_alone = _compiled(corl.update_td3_no_targets, common)

    def update(self, step: Callable, batch: Batch, noise: Tensor) -> None:
        batch = {
            "states": batch.observations,
            "actions": batch.actions,
            "rewards": batch.rewards,
            "next_states": batch.next_observations,
            "next_actions": batch.next_actions,
            "dones": batch.terminated,
        }
        batch = {name: value[0].numpy() for name, value in batch.items()}
        self.actor, self.critic = step(self.actor, self.critic, batch, noise[0].numpy())


def _state(kind: type, module, rate: float, *inputs: np.ndarray):
    key = jax.random.PRNGKey(0)
    params = jax.tree_util.tree_map(np.float64, module.init(key, *inputs))
    return kind.create(
        apply_fn=module.apply, params=params, target_params=params, tx=optax.adam(rate)
    )


def _compiled(update: Callable, settings: dict) -> Callable:
    """Compiles an update of CORL whose one normal draw is an argument."""

    @jax.jit
    def step(actor, critic, batch, noise):
        with mock.patch("jax.random.normal", return_value=noise):
            key = jax.random.PRNGKey(0)
            _, actor, critic, _ = update(key, actor, critic, batch, **settings)
        return actor, critic

    return step


def of_rebrac(corl: SimpleNamespace, sizes: tuple[int, int], spec: Spec, args: argparse.Namespace):
    """Returns `update(batches)` of both, the updates that it makes, and networks, ours with theirs."""
    cfg = rebrac.Config(actor_bc_coef=1.0, critic_bc_coef=1.0)
    ours, theirs = rebrac.ReBRAC(cfg, spec), Theirs(corl, sizes, cfg)
    noise = seeding.normal([args.seed], "noise", (args.batch, sizes[1]))

    def update(batches: list[Batch]) -> None:
        noises = [noise.next().double() for _ in batches]
        ours.update(batches, noises)
        for step, batch, drawn in zip(
            (theirs.both, theirs.critic_alone), batches, noises, strict=True
        ):
            theirs.update(step, batch, drawn)

    pairs = [
        (_parts(ours.actor), lambda: _layers(theirs.actor.params)),
        (_parts(ours.target_actor), lambda: _layers(theirs.actor.target_params)),
        (_parts(ours.critic), lambda: _layers(theirs.critic.params)),
        (_parts(ours.target_critic), lambda: _layers(theirs.critic.target_params)),
    ]
    return update, 2, pairs


def _parts(network: nn.Module) -> SimpleNamespace:
    norms = [norm for norm in network.norms if not isinstance(norm, nn.Identity)]
    return SimpleNamespace(layers=[*network.layers, *norms])


def _layers(params: dict):
    while "Dense_0" not in params:
        (params,) = params.values()
    for name in sorted(params):
        weight = params[name].get("kernel", params[name].get("scale"))
        yield torch.tensor(np.array(weight)), torch.tensor(np.array(params[name]["bias"]))
