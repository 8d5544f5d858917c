"""The state of a simulator in the middle of an episode, so that a resumed run is bit-equal."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import wrappers

from corerl.data.observations import History, wrapper

READ_BEFORE_STEPPING = ("xpos", "xipos")
"""Derived quantities from which some rewards take the position before the step (Ant, Humanoid).
A physics step leaves them one substep behind the state, so they are part of what must be restored."""

MUJOCO, CLASSIC = "gymnasium.envs.mujoco", "gymnasium.envs.classic_control"
STATELESS = (
    *(wrappers.OrderEnforcing, wrappers.PassiveEnvChecker, wrappers.RecordEpisodeStatistics),
    *(wrappers.ClipAction, wrappers.DiscretizeAction, wrappers.RescaleAction),
    *(wrappers.DiscretizeObservation, wrappers.DtypeObservation, wrappers.FilterObservation),
    *(wrappers.FlattenObservation, wrappers.GrayscaleObservation, wrappers.RescaleObservation),
    *(wrappers.ReshapeObservation, wrappers.ResizeObservation, wrappers.ClipReward),
    *(wrappers.TransformAction, wrappers.TransformObservation, wrappers.TransformReward),
)
"""Wrappers of gymnasium that hold nothing of an episode by which it goes on."""
OWN = ("corerl.data.", "corerl.envs.", "corerl.training.")
"""Where the wrappers of corerl are. They hold nothing of an episode beyond frames and a `state_dict`."""


def opaque(env: gymnasium.Env) -> gymnasium.Env | None:
    """Returns the outermost wrapper of `env`, or what it wraps, that cannot be saved. None: all can.

    Known are gymnasium's own MuJoCo and classic-control environments, wrappers without a state
    (`STATELESS`, `OWN`), the outermost time limit, and whatever has a `state_dict`.
    """
    limit = wrapper(env, wrappers.TimeLimit)
    for layer in _layers(env):
        kind = type(layer)
        known = layer is limit or kind in STATELESS or kind.__module__.startswith(OWN)
        if not known and not hasattr(layer, "load_state_dict"):
            return layer
    inner = env.unwrapped
    known = type(inner).__module__.startswith((MUJOCO, CLASSIC))
    return None if known or hasattr(inner, "load_state_dict") else inner


def _layers(env: gymnasium.Env) -> Iterator[gymnasium.Wrapper]:
    """Yields the wrappers around an environment, outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _stateful(env: gymnasium.Env) -> list[Any]:
    return [layer for layer in _layers(env) if hasattr(layer, "load_state_dict")]


def save_simulator(env: gymnasium.Env) -> dict[str, Any] | None:
    """Saves everything that decides how `env` continues, or None where a part of it is `opaque`."""
    if opaque(env) is not None:
        return None
    inner = env.unwrapped
    library = type(inner).__module__
    if library.startswith(MUJOCO):
        parts = _save_mujoco(inner)
    elif library.startswith(CLASSIC):
        parts = {"state": torch.tensor(np.asarray(inner.state))}
    else:
        parts = {"inner": inner.state_dict()}
    limit, history = wrapper(env, wrappers.TimeLimit), wrapper(env, History)
    if history is not None:
        parts["frames"] = torch.from_numpy(history.frames)
    if stateful := _stateful(env):
        parts["wrappers"] = [layer.state_dict() for layer in stateful]
    elapsed = None if limit is None else limit._elapsed_steps
    return parts | {"elapsed": elapsed, "generator": inner.np_random.bit_generator.state}


def load_simulator(env: gymnasium.Env, saved: dict[str, Any]) -> None:
    """Restores what `save_simulator` saved, in an environment that has been reset at least once."""
    inner = env.unwrapped
    if "inner" in saved:
        inner.load_state_dict(saved["inner"])
    elif "state" in saved:
        inner.state = saved["state"].numpy()
    else:
        _load_mujoco(inner, saved)
    limit, history = wrapper(env, wrappers.TimeLimit), wrapper(env, History)
    if limit is not None:
        limit._elapsed_steps = saved["elapsed"]
    if history is not None:
        history.frames = saved["frames"].numpy()
    for layer, state in zip(_stateful(env), saved.get("wrappers", []), strict=True):
        layer.load_state_dict(state)
    inner.np_random.bit_generator.state = saved["generator"]


def _save_mujoco(env) -> dict[str, Any]:
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION  # with the solver's warm start
    physics = np.empty(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_getState(env.model, env.data, physics, kind)
    derived = {name: torch.tensor(getattr(env.data, name)) for name in READ_BEFORE_STEPPING}
    return {"physics": torch.from_numpy(physics), "derived": derived}


def _load_mujoco(env, saved: dict[str, Any]) -> None:
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    mujoco.mj_setState(env.model, env.data, saved["physics"].numpy(), kind)
    for name, value in saved["derived"].items():
        getattr(env.data, name)[:] = value.numpy()
