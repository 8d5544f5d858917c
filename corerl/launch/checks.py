"""Checks of a cell before its seeds train: steps, data, simulator."""

import sys

import gymnasium
from gymnasium import wrappers

from corerl.config import Config, Settings, require
from corerl.data.observations import wrapper
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.training import spaces
from corerl.training.environment_step import close, reset, step

NO_DATA = "no dataset, but the algorithm needs one"


def needs_simulator(cfg: Config) -> bool:
    """Tells whether a run makes its environment, to learn in it or to evaluate."""
    return not (cfg.eval.later and for_evaluation(cfg.algo))


def check_steps(cfg: Config) -> None:
    """Notices before training that the steps do not end with an update, or that the policy gets none."""
    cfg.policy_steps()
    stride, setting = cfg.algo.steps_multiple()
    require(
        cfg.steps % stride == 0,
        f"steps={cfg.steps} must be a multiple of {setting}={stride}, the steps that corerl makes at a time",
    )


def check_simulator(cfg: Config, task: Task) -> None:
    """Notices before training that the simulator is missing, or is nothing for the algorithm."""
    try:
        env = task.make_env()
    except CorerlError as error:
        if not cfg.eval.episodes:
            return
        why = missing(str(error), for_evaluation(cfg.algo))
        if cfg.eval.later:
            why += f" eval.later=true cannot avoid this, because {cfg.algo.label} trains in the environment."
        raise CorerlError(why) from error
    try:
        spaces.check(cfg.algo, task.id, env.observation_space, env.action_space)
        _tell_own_statistics(env, task.id)
        try_simulator(env, task.id)
    finally:
        close([env])


def _tell_own_statistics(env: gymnasium.Env, task: str) -> None:
    """Warns of numbers whose scale another environment of the same task does not share."""
    for kind in (wrappers.NormalizeObservation, wrappers.NormalizeReward):
        found = wrapper(env, kind)
        if found is not None and found.update_running_mean:
            print(
                f"corerl: {task} is wrapped in {kind.__name__}, which gathers statistics in each "
                "environment. Training and evaluation then see different scales, so one policy's scores "
                "vary. Leave the wrapper out, or fix its statistics (update_running_mean=False).",
                file=sys.stderr,
            )


def try_simulator(env: gymnasium.Env, task: str) -> None:
    """Makes one step, to find a custom environment's fault before hours of training."""
    try:
        step(env, env.action_space.sample(), reset(env, None, seed=0).shape)
    except ValueError as error:
        raise CorerlError(f"The environment of {task} cannot be used: {error}") from error


def for_evaluation(algo: Settings) -> bool:
    """Tells whether an algorithm, as it is set, learns from data alone, so that no environment trains it."""
    return algo.learns_from_data and algo.phase == "offline"


def lacks_data(algo: Settings, task: Task) -> bool:
    """Tells whether an algorithm, as it is set, begins with data where the task has none."""
    return algo.learns_from_data and algo.phase != "online" and not task.has_data


def missing(why: str, evaluates: bool) -> str:
    """Says why there is no simulator, and how to do without where it only `evaluates`."""
    instead = (
        "Evaluate later on another machine (eval.later=true), or not at all (eval.episodes=0)."
    )
    return f"{why.rstrip('.')}. {instead}" if evaluates else why
