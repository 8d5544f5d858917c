"""SPO: self-play preference optimisation (Swamy et al. 2024, ICML, arXiv:2401.04056).

No reward is modelled. An agent's episodes are compared with each other. The reward of an episode is its
share of wins against the latest ones, spread evenly over its steps:

    R(tau) = mean over the queue of P(tau preferred to tau'),      r_t = R(tau) / H

With preferences that no reward explains, such as cyclic ones, self-play approaches the minimax winner, and a
model of rewards cannot. corerl/preferences/self_play.py has both for a matrix. The learner is SAC.

    python algos/spo.py task=gym/Pendulum-v1 steps=20000 seeds=3
    corerl train algo=spo task=gym/HalfCheetah-v4 algo.beta=0.01 seeds=3

A script compares returns. With `teacher=environment` the environment does. It then has `summary(observations,
actions, rewards)`, an array of an episode, and `prefers(one, other)`, the chance that the first is preferred.

With `model.dimension=2` the teacher answers `model.budget` questions. A general preference model is fitted to
the answers and compares all episodes (corerl/preferences/general.py). This is `algo=spo_general`. With
`model.dimension=1` the model is a reward.

    corerl train -m algo=spo task=risk/three-corners algo.model.dimension=1,2 steps=20000 seeds=5

Our reading. The abstract could be read, and there is no public code.
 1. The queue has ten episodes, and none of the episode itself. While it is empty, R is 1/2.
 2. An episode's R stays as it was when it ended.
 3. Updates wait for the time limit, when every seed has ended an episode. They use ended episodes alone.
 4. H is the number of the episode's own steps. `reward_scale` multiplies r.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corerl.algos import sac
from corerl.buffers.mixed_replay import EpisodeReplay
from corerl.buffers.replay import Batch
from corerl.config import added, at_least, group, one_of, positive, require
from corerl.data.tasks import Task
from corerl.nn import compile
from corerl.nn.policies import PolicyNoise
from corerl.preferences.general import General, PreferenceModel
from corerl.preferences.teachers import chance_of
from corerl.training import spaces
from corerl.training.offline_to_online import time_limit
from corerl.training.run import Run
from corerl.training.snapshots import environments


@dataclass
class Config(sac.Config):
    name: str = "spo"
    label: str = "SPO"

    queue: int = positive(10)  # number of latest episodes that a new episode is compared with
    teacher: str = one_of(  # return (the larger wins) | environment (compares episodes)
        "return", "environment"
    )
    beta: float | None = at_least(  # P(win) = sigmoid(beta * return difference) (null: no noise)
        0, None
    )
    reward_scale: float = positive(1.0)  # factor of the self-play reward
    model: General = added(group(General))  # preference model that answers for the teacher


class WinReplay(EpisodeReplay):
    """A replay whose label is the reward by self-play.

    Args:
        summary: of an episode's observations, actions and rewards, `(K,)`. prefers: of two summaries.
        queue: episodes that one is compared with.
        model: compares every episode with today's queue in place of `prefers`, where given.
        Others as for `ReplayBuffer`.

    Attributes:
        won: `(S,)`, the share of wins of each seed's last episode.
    """

    def __init__(
        self,
        *args: Any,
        summary: Callable[..., np.ndarray],
        prefers: Callable[[np.ndarray, np.ndarray], float],
        queue: int,
        model: PreferenceModel | None = None,
        **options: Any,
    ):
        super().__init__(*args, label=lambda rewards: rewards, **options)
        self._summary, self._prefers, self._size, self._model = summary, prefers, queue, model
        self.queues: list[list[np.ndarray]] = [[] for _ in range(len(self._rows))]
        self.won = torch.full((len(self._rows),), 0.5)
        self._last = torch.zeros(self._rows.shape[:2], dtype=torch.int64, device=self._rows.device)
        """The last row of each row's episode; the label is its length, with a model."""

    def _labels_of(self, i: int, rewards: np.ndarray) -> np.ndarray:
        first, stop = int(self._ended[i]), self._added
        found = self._summary_of(i, first, stop)
        if self._model is None:
            queue = self.queues[i]
            wins = [self._prefers(found, other) for other in queue]
            self.won[i] = float(np.mean(wins)) if wins else 0.5
            queue.append(found)
            del queue[: -self._size]
            return np.full(len(rewards), float(self.won[i]) / len(rewards))
        if first:
            self._ask(i, first, stop, found)
        self.won[i] = self._model.join(i, self._steps(i, first, stop))
        self._last[i, first:stop] = stop - 1
        return np.full(len(rewards), float(len(rewards)))

    def _ask(self, i: int, first: int, stop: int, found: np.ndarray) -> None:
        """Asks the teacher about the episode that ends and an earlier one, drawn by a row of it."""
        rng = self._model.question(i)
        if rng is None:
            return
        row = int(rng.integers(first))
        end = int(self._last[i, row]) + 1
        begin = end - int(self._labels[i, row])
        label = float(rng.random() < self._prefers(found, self._summary_of(i, begin, end)))
        pair = self._steps(i, begin, end), self._steps(i, first, stop)
        self._model.keep(i, *pair, label)

    def _summary_of(self, i: int, first: int, stop: int) -> np.ndarray:
        parts = (x.cpu().numpy() for x in self._rows[i, first:stop].split(self._sizes, -1))
        observations, actions, rewards, *_ = parts
        found = self._summary(observations, actions, rewards[:, 0])
        return np.atleast_1d(np.asarray(found, np.float64))

    def _steps(self, i: int, first: int, stop: int) -> Tensor:
        return self._rows[i, first:stop, : sum(self._sizes[:2])]

    def sample_labelled(self, count: int | None = None) -> tuple[Batch, Tensor]:
        """Samples the next batch of every seed and the rewards `(S, B)`."""
        if self._model is None:
            return super().sample_labelled(count)
        chosen = self._numbers.next()[:, :count] % self._known
        lengths, last = self._labels.gather(1, chosen), self._last.gather(1, chosen)
        steps = torch.arange(self._model.length, device=last.device)
        first = last - lengths.long() + 1
        places = torch.minimum(first[..., None] + steps, last[..., None])
        wins = self._model.wins(self.at(places))
        return self._take(chosen + self._starts), wins / lengths

    def state_dict(self) -> dict:
        kept = [[torch.from_numpy(x) for x in queue] for queue in self.queues]
        own = {"queues": kept, "won": self.won}
        if self._model is not None:
            own["last"] = self._last[:, : len(self)]
        return super().state_dict() | own

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.queues = [[x.numpy() for x in queue] for queue in state["queues"]]
        self.won.copy_(state["won"])
        if self._model is not None:
            self._last[:, : len(self)].copy_(state["last"])


def teacher_of(cfg: Config, task: Task) -> dict[str, Callable]:
    """Returns what an episode is compared by: `summary` and `prefers`.

    Raises:
        CorerlError: the environment is to compare and cannot, or contradicts itself, or would not get its own
            observations and actions.
    """
    if cfg.teacher == "return":
        return {
            "summary": lambda s, a, rewards: rewards.sum(dtype=np.float64),
            "prefers": by_return(cfg.beta),
        }
    spaces.check_as_shown(task, "algo.teacher=environment")
    env = task.make_env().unwrapped
    require(
        hasattr(env, "summary") and hasattr(env, "prefers"),
        f"algo.teacher=environment needs an environment with summary(observations, actions, rewards) and "
        f"prefers(one, other), which {task.id} lacks. Set algo.teacher=return",
    )

    def prefers(one: np.ndarray, other: np.ndarray) -> float:
        chance, turned = float(env.prefers(one, other)), float(env.prefers(other, one))
        require(
            chance >= 0 and turned >= 0 and abs(chance + turned - 1) < 1e-6,
            f"In {task.id}, prefers(one, other) is {chance:g} and prefers(other, one) is "
            f"{turned:g}. Both must be probabilities that sum to 1",
        )
        return chance

    return {"summary": env.summary, "prefers": prefers}


def by_return(beta: float | None) -> Callable[[np.ndarray, np.ndarray], float]:
    """Returns the preference for the larger return, noisy with `beta`."""

    def prefers(one: np.ndarray, other: np.ndarray) -> float:
        return chance_of(float(one[0] - other[0]), beta)

    return prefers


build = sac.SAC


def train(cfg: Config, run: Run) -> None:
    envs = environments(run, cfg.start)
    agent = sac.SAC(cfg, run.spec(envs))
    sizes = (envs.observation_dim, envs.action_dim)
    model, length = None, time_limit(run)
    if cfg.model.dimension:
        model = PreferenceModel(cfg.model, run.agent_spec, length, cfg.queue)
    options = teacher_of(cfg, run.task) | {"queue": cfg.queue, "model": model}
    buffer = (*sizes, run.cfg.steps, run.seeds, cfg.batch_size, run.device)
    replay = WinReplay(*buffer, **options)
    noise = run.normal("noise", 2, cfg.batch_size, envs.action_dim)
    exploration = run.normal("exploration", 1, envs.action_dim)
    uniform = run.uniform("random actions", 1, envs.action_dim)
    update = compile.captured(agent.update, run.mode)
    explore = compile.captured(agent.explore, run.mode)
    first = max(cfg.random_steps, length)
    state = {"agent": agent, "envs": envs, "replay": replay, "model": model}
    state |= {"noise": noise, "exploration": exploration, "uniform": uniform}
    for step in run.steps(**state):
        if step <= cfg.random_steps:
            actions = 2 * uniform.next() - 1
        else:
            actions = explore(envs.look(), exploration.next())
        actions = envs.receive(actions)
        if step > first:
            noises = [PolicyNoise(*noise.next().unbind(1)) for _ in range(cfg.utd)]
            metrics = update([_rewarded(cfg, replay) for _ in noises], noises)
            metrics |= model.update() if model else {}
            now = {"won": replay.won.to(run.device), "episode_return": envs.episode_returns}
            run.log(step, metrics | now)
        replay.add(envs.step(actions))
        run.evaluate(step, agent.act)
        run.save(step)


def _rewarded(cfg: Config, replay: WinReplay):
    batch, wins = replay.sample_labelled()
    return batch._replace(rewards=cfg.reward_scale * wins)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
