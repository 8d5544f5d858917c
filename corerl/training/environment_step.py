"""Checked steps of an environment, in training and evaluation. A crash ends one seed only."""

import math
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np

from corerl.config import require
from corerl.data.observations import kept_as

CLOSING = 30  # seconds for all environments of a run


def longest(env: gymnasium.Env) -> int:
    """Returns the largest duration of a step, in whole units of time: the attribute `longest`, or 1."""
    return int(getattr(env.unwrapped, "longest", 1))


def refuse_durations(env: gymnasium.Env) -> None:
    """Raises CorerlError where steps take time, for learners that count every step as one unit."""
    require(
        longest(env) == 1,
        f"The steps of {env.unwrapped} have durations, which this algorithm does not support online. Choose "
        "dqn, qr_dqn, iqn, hra or md3qn for discrete actions, or train iql on data",
    )


def reset(
    env: gymnasium.Env,
    shape: tuple[int, ...] | None,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
) -> np.ndarray:
    """Returns the first observation. Raises what the environment raises, and as `step`.

    An environment that takes no seed so large, as one that seeds numpy's global generator, gets 32 of its
    bits.
    """
    try:
        made = env.reset(seed=seed, options=options)
    except ValueError:
        if seed is None or seed < 2**32:
            raise
        made = env.reset(seed=seed % 2**32, options=options)
    if not (isinstance(made, tuple) and len(made) == 2):
        raise ValueError("its reset must return a pair (observation, info)")
    return _checked(made[0], shape)


def step(env: gymnasium.Env, action: Any, shape: tuple[int, ...]) -> tuple:
    """Steps the environment and returns what `env.step` does, checked.

    Raises:
        ValueError: the observation has another shape than before, which would be broadcast, or it or the
            reward is no finite number; it does not return five things.
    """
    made = env.step(action)
    if not (isinstance(made, tuple) and len(made) == 5):
        raise ValueError(
            "its step must return five values (observation, reward, terminated, truncated, info)"
        )
    observation, reward, terminated, truncated, info = made
    if getattr(reward, "shape", ()) != ():
        raise ValueError(
            f"its reward is an array of shape {reward.shape}, but must be a number: return float(reward)"
        )
    if not math.isfinite(reward):
        raise ValueError(f"its reward is {reward}, but must be finite")
    return _checked(observation, shape), reward, terminated, truncated, info


def _checked(observation: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    observation = np.asarray(observation)
    if shape is not None and observation.shape != shape:
        raise ValueError(f"its observation has shape {observation.shape}, but should have {shape}")
    if observation.dtype.kind == "f" and not np.isfinite(observation).all():
        raise ValueError("its observation holds NaN or infinity, but must be finite")
    return observation


def begin(
    starts: Sequence[tuple[int, gymnasium.Env, int]],
    crashed: set[int],
    seeds: Sequence[int],
    options: Sequence[dict[str, Any] | None] | None = None,
) -> np.ndarray:
    """Returns the first observations `(n, ...)` of environments of seed number i, reset with these seeds.

    Those of seeds that crashed are 0. `options`: of each reset.
    """
    first: list[np.ndarray | None] = []
    shape = None
    for (i, env, seed), chosen in zip(starts, options or [None] * len(starts), strict=True):
        first.append(None)
        if i in crashed:
            continue
        try:
            first[-1] = reset(env, shape, seed, chosen)
            shape = first[-1].shape
        except (Exception, SystemExit) as error:
            note_crash(crashed, i, seeds, error)
    stacked = np.stack([np.zeros(shape) if x is None else x for x in first])
    return stacked.astype(kept_as(stacked.shape[1:], starts[0][1].observation_space.dtype))


def goal_tasks(env: gymnasium.Env) -> int:
    """Returns how many tasks with a goal an environment has. 0 without goals."""
    return env.get_wrapper_attr("goal_tasks") if env.has_wrapper_attr("goal_tasks") else 0


def note_crash(
    crashed: set[int], i: int, seeds: Sequence[int], error: BaseException, where: str = ""
) -> None:
    """Adds seed number i to those whose environment crashed. The others continue.

    A crash is an exception, the end of the program, or an observation or reward that is none.

    Raises:
        The error, where none is left; to end the program is none of an environment's rights.
    """
    crashed.add(i)
    if len(crashed) == len(seeds):
        if isinstance(error, SystemExit):
            raise RuntimeError(f"the environment ended the program ({error!r})") from error
        raise error
    print(
        f"corerl: the environment of seed {seeds[i]} crashed{where} "
        f"({type(error).__name__}: {error}). The other seeds continue",
        file=sys.stderr,
    )


def close(envs: Iterable[gymnasium.Env]) -> None:
    """Closes environments. One that raises or hangs there keeps no finished run from its end."""

    def each() -> None:
        for env in envs:
            try:
                env.close()
            except (Exception, SystemExit) as error:
                print(
                    f"corerl: {type(env.unwrapped).__name__} did not close: {error!r}",
                    file=sys.stderr,
                )

    closing = threading.Thread(target=each, daemon=True)
    closing.start()
    closing.join(CLOSING)
    if closing.is_alive():
        print(
            f"corerl: an environment did not close within {CLOSING} s, so it stays open",
            file=sys.stderr,
        )
