"""Preprocessing that papers choose per dataset: from a task's dataset to batches."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from corerl.buffers.replay import OfflineBuffer
from corerl.config import Settings, added, group, one_of, positive, require, within
from corerl.data.dataset import Dataset, Transitions
from corerl.data.files.checks import leaps
from corerl.errors import CorerlError
from corerl.nn.networks import Normalizer
from corerl.training import expert_rewards, inverse_dynamics, spaces, weighting
from corerl.training.expert_rewards import REWARDS, Expert
from corerl.training.inverse_dynamics import Inverse
from corerl.training.run import Run
from corerl.training.weighting import WEIGHTINGS, Weighting

SMALL = 0.2
"""A tenth of the width of [-1, 1]."""


@dataclass
class Preprocess(Settings):
    """Settings for preparing a dataset before training, in this order. Part of an algorithm's `Config`.

    Only `actions`, `end_reward` and `rewards` come first. The last two make the returns that `return_range`
    measures.

    A shift of the rewards by c is an initial Q lower by c / (1 - discount), where no episode ends in a
    terminal state: Q with shifted rewards is Q + c / (1 - discount), and so negative shifts are optimistic
    (Sun et al. 2022, arXiv:2209.07288). Where episodes end in terminal states, a shift changes which policy
    is best: a positive one pays for staying alive.
    """

    prefix: ClassVar[str] = "algo.data."

    return_range: bool = False  # multiplies rewards by 1000 / (largest - smallest episode return)
    reward_scale: float = 1.0  # factor that multiplies rewards before reward_shift is added
    reward_shift: float = 0.0  # number added to the scaled rewards
    clip_actions: float = within(1.0, "(0, 1]")  # training clips actions to +- this number
    end_reward: float | None = added(None)  # recorded reward that marks terminal steps (null: none)
    normalize_states: bool = False  # states become (s - mean) / (std + 1e-3), also when acting

    weighting: str = added(one_of(*WEIGHTINGS))  # uniform | return, advantage (good) | top (best)
    weighting_alpha: float = added(positive(0.1))  # temperature of return, advantage (near 0: best)
    weighting_share: float = added(within(0.1, "(0, 1]"))  # share of best episodes if weighting=top

    rewards: str = added(one_of(*REWARDS))  # data (recorded) | seabo, otr, uds (by demonstrations)
    expert: Expert = added(group(Expert))
    actions: str = added(one_of("data", "inverse"))  # data (recorded) | inverse (filled by a model)
    inverse: Inverse = added(group(Inverse))


def load(
    run: Run,
    data: Preprocess,
    batch_size: int,
    *,
    next_actions: bool = False,
    best: float = 1.0,
    best_discount: float = 1.0,
    raw: bool = False,
    labels: Callable[[Dataset], np.ndarray] | None = None,
    kind: type[OfflineBuffer] = OfflineBuffer,
) -> tuple[OfflineBuffer, Normalizer]:
    """Loads the run's buffer, preprocessed, and the normaliser that its policy needs.

    Args:
        next_actions: batches carry the dataset's next action; rows without one are left out.
        best: the share of episodes to keep, highest return first, discounted by `best_discount`.
        raw: observations stay as recorded; the normaliser is the caller's to apply.
        labels: from the dataset, with its preprocessed rewards, to a number per step `(N,)`.
        kind: of buffer, for rewards that are not the dataset's.

    Raises:
        CorerlError: the dataset has images, actions that the algorithm does not take, or no transitions.
    """
    expert_rewards.check_phase(run.cfg.algo.phase, data)
    if run.cfg.algo.phase == "online" and not run.cfg.algo.learns_from_data:
        return _without_data(run, batch_size, next_actions)
    dataset = vectors(run, timed=True).ended_by(data.end_reward)
    if data.rewards != "data":
        dataset = expert_rewards.relabelled(run, dataset, data)
    if labels is not None:
        require(
            dataset.durations is None,
            f"{run.cfg.algo.name} learns from returns that count all steps as equally long, but the steps of "
            f"{dataset.id} have durations. Choose an algorithm such as iql or cql",
        )
    if best < 1:
        dataset = dataset.best_episodes(best, best_discount)
    _warn_of_saturation(dataset, data)
    _warn_of_small_actions(dataset)
    if next_actions or run.cfg.history > 1:
        warn_of_order(dataset, run.cfg.history)
    width = dataset.observations.shape[1]
    mean, std = dataset.obs_stats() if data.normalize_states else (np.zeros(width), np.ones(width))
    learned = dataset.with_rewards(preprocessed_rewards(dataset, data))
    transitions = timed_transitions(run, learned, next_actions)
    of_rows = None if labels is None else labels(learned)[transitions.rows]
    limit = data.clip_actions
    if data.normalize_states and not raw:
        transitions = transitions._replace(
            observations=((transitions.observations - mean) / std).astype(np.float32),
            next_observations=((transitions.next_observations - mean) / std).astype(np.float32),
        )
    if dataset.discrete:
        actions = one_hot(run, transitions.actions)
    else:
        actions = np.clip(transitions.actions, -limit, limit)
        if next_actions:
            following = np.clip(transitions.next_actions, -limit, limit)
            transitions = transitions._replace(next_actions=following)
    transitions = transitions._replace(actions=actions)
    likely = weighting.probabilities(dataset, data, transitions.rows)
    options = {} if likely is None else {"probabilities": likely}
    buffer = kind(transitions, run.seeds, batch_size, run.device, of_rows, **options)
    buffer.discrete = dataset.discrete
    return buffer, Normalizer.of(mean, std).to(run.device)


def _without_data(
    run: Run, batch_size: int, next_actions: bool
) -> tuple[OfflineBuffer, Normalizer]:
    """Returns a buffer as of `load`, of one row that is in no batch, and a normaliser to be restored."""
    env = run.task.make_training_env()
    env.close()
    states, actions = (
        np.zeros((1, *space.shape)) for space in (env.observation_space, env.action_space)
    )
    none = np.zeros(1)
    row = Transitions(states, actions, none, states, none, none, actions if next_actions else None)
    buffer = OfflineBuffer(row, run.seeds, batch_size, run.device, labels=none)
    return buffer, Normalizer.of(states[0], states[0] + 1).to(run.device)


def load_demonstrations(
    run: Run, data: Preprocess, batch_size: int, normalizer: Normalizer
) -> OfflineBuffer:
    """Loads the steps of the demonstrations that `data.expert` names, as `load` loads the others.

    Raises:
        CorerlError: they are too few, of other spaces, or stop without an end or a next state.
    """
    dataset = vectors(run, timed=True).ended_by(data.end_reward)
    expert = expert_rewards.demonstrations(run, dataset, data)[0]
    transitions = timed_transitions(run, expert)
    limit = data.clip_actions
    actions = transitions.actions
    made = transitions._replace(
        observations=normalizer.of_array(transitions.observations),
        next_observations=normalizer.of_array(transitions.next_observations),
        actions=one_hot(run, actions) if expert.discrete else np.clip(actions, -limit, limit),
    )
    return OfflineBuffer(made, run.seeds, batch_size, run.device, purpose="demonstrations")


def _warn_of_saturation(dataset: Dataset, data: Preprocess) -> None:
    """Warns of states that saturate a fresh tanh policy, which has no gradient then and never learns."""
    size = float(np.abs(dataset.obs_stats()[0]).max())
    if size > 50 and not data.normalize_states:
        print(
            f"corerl: an observation column of {dataset.id} is {size:.0f} on average, which saturates an "
            "untrained policy. Consider algo.data.normalize_states=true",
            file=sys.stderr,
        )


def _warn_of_small_actions(dataset: Dataset) -> None:
    """Warns of actions in a small part of the range that imitation, noise and spread are measured in."""
    if dataset.discrete:
        return
    low, high = dataset.actions.min(0), dataset.actions.max(0)
    if ((high - low) < SMALL).any() and (low < high).all():
        ends = (np.floor(low * 1000) / 1000, np.ceil(high * 1000) / 1000)
        ends = ",".join(
            f"{e[0]:g}" if len(e) == 1 else f"[{','.join(f'{x:g}' for x in e)}]" for e in ends
        )
        print(
            f"corerl: actions of {dataset.id} fill less than a tenth of the environment's range, "
            "so noise and "
            f"imitation losses have the wrong scale. Consider action_range=[{ends}]",
            file=sys.stderr,
        )


def warn_of_order(dataset: Dataset, history: int = 1) -> None:
    """Warns where rows must follow each other in time, for the algorithm or `history`, and most do not."""
    rows = len(leaps(dataset))
    if rows > len(dataset) / 2:
        reader = "This algorithm" if history == 1 else f"history={history}"
        print(
            f"corerl: in {rows:,} of {len(dataset):,} rows of {dataset.id}, the next observation "
            f"differs from the next row's observation. {reader} reads rows as consecutive "
            "steps. Sort the rows by episode and step",
            file=sys.stderr,
        )


def vectors(run: Run, *, timed: bool = False) -> Dataset:
    """Returns the run's data, of vector observations and of actions that the algorithm takes.

    Args:
        timed: whether the caller minds the durations of steps (`timed_transitions`).

    Raises:
        CorerlError: the data has other actions, images, or durations that nobody minds.
    """
    dataset = run.dataset()
    spaces.check_data(run.cfg.algo, dataset)
    dataset = inverse_dynamics.with_actions(dataset, run.cfg.algo.data)
    check_durations(run.cfg.algo, dataset, timed)
    return dataset


def check_durations(algo: Any, dataset: Dataset, timed: bool) -> None:
    """Raises CorerlError where steps have durations that the algorithm, or its phase, does not mind."""
    if dataset.durations is None:
        return
    instead = ". Choose an algorithm such as iql, dqn_offline or bcq_discrete"
    if timed:
        instead = f" with algo.phase={algo.phase}. Use algo.phase=offline"
    require(
        timed and algo.phase == "offline",
        f"The steps of {dataset.id} have durations, which {algo.name} does not support{instead}",
    )


def timed_transitions(run: Run, dataset: Dataset, next_actions: bool = False) -> Transitions:
    """Returns the dataset's transitions, where `terminated` holds the durations of steps, too.

    Targets discount what follows by discount * (1 - terminated). After a step of duration k, `terminated` is
    1 - discount^(k - 1) in place of 0, so that this is discount^k. It is 0, as without durations, for k = 1.
    """
    transitions = dataset.transitions(next_actions)
    if dataset.durations is None:
        return transitions
    discounts = dataset.discounts(run.cfg.algo.discount, beyond=1)
    kept = discounts[transitions.rows] * ~transitions.terminated
    return transitions._replace(terminated=(1 - kept).astype(np.float32))


def one_hot(run: Run, actions: np.ndarray) -> np.ndarray:
    """Turns discrete actions `(N,)` into float32 vectors `(N, A)` of `action_count`'s length."""
    return np.eye(action_count(run, actions), dtype=np.float32)[actions]


def action_count(run: Run, actions: np.ndarray) -> int:
    """Counts the discrete actions of the task's environment. Without a simulator, those of the data.

    Raises:
        CorerlError: the data has an action that the environment has not.
    """
    largest = int(actions.max())
    try:
        env = run.task.make_env()
    except CorerlError:
        return largest + 1
    env.close()
    count = int(env.action_space.n)
    require(
        largest < count,
        f"{run.task.id} has {count} actions, from 0 to {count - 1}, but its data contain action "
        f"{largest}. Repair the data",
    )
    return count


def preprocessed_rewards(dataset: Dataset, data: Preprocess) -> np.ndarray:
    """Returns rewards `(N,)` after the return-range scaling, then scale and shift.

    The range is over true episodes. The authors of IQL and CORL split the filtered rows instead, where
    a timed-out episode has lost its last reward (CORL's boundaries also drift by one row per such
    episode), so their factor differs by about 0.1 %.
    """
    factor = return_factor(dataset) if data.return_range else np.float32(1)
    return affine(dataset.rewards, factor, data)


def return_factor(dataset: Dataset) -> np.float32:
    """Returns the factor by which return-range scaling multiplies rewards."""
    returns = dataset.episode_returns()
    spread = float(returns.max() - returns.min())
    if spread == 0:
        raise CorerlError(
            f"algo.data.return_range=true divides by the range of episode returns, but all episodes "
            f"of {dataset.id} return {returns[0]:g}. Set algo.data.return_range=false."
        )
    return np.float32(1000 / spread)


def affine(rewards: np.ndarray, factor: np.float32, data: Preprocess) -> np.ndarray:
    """Puts raw rewards, of a dataset or of an environment, on the scale that is learned.

    All of it is float32's arithmetic, as a dataset's rewards are float32, so that equal rewards stay equal.
    """
    rewards = rewards.astype(np.float32)
    return (rewards * factor * data.reward_scale + data.reward_shift).astype(np.float32)


def load_discrete(
    run: Run, data: Weighting, batch_size: int
) -> tuple[OfflineBuffer, tuple[int, ...], int]:
    """Returns the buffer of a dataset with discrete actions, the shape of its observations, how many actions.

    Raises:
        CorerlError: the dataset's actions are continuous, or its observations are images; `action_count`.
    """
    dataset = vectors(run, timed=True)
    if run.cfg.history > 1:
        warn_of_order(dataset, run.cfg.history)
    transitions = timed_transitions(run, dataset)
    buffer = OfflineBuffer(
        transitions,
        run.seeds,
        batch_size,
        run.device,
        probabilities=weighting.probabilities(dataset, data, transitions.rows),
    )
    return buffer, dataset.observations.shape[1:], action_count(run, dataset.actions)
