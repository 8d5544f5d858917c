"""Collects episodes into a Minari dataset. A kill at any moment costs at most one chunk of work."""

from __future__ import annotations

import hashlib
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from corerl import seeding
from corerl.data import download, suites
from corerl.data.files.io import npz, replacing
from corerl.data.minari import writing
from corerl.data.observations import unflattened
from corerl.errors import CorerlError
from corerl.runs import files, provenance


class Episode(NamedTuple):
    """T recorded steps, ended by a terminal state or else by a time limit or the recording's end."""

    observations: np.ndarray  # (T + 1, O) float32
    actions: np.ndarray  # (T, A) float32
    rewards: np.ndarray  # (T,) float32
    terminated: bool

    def cut(self, steps: int) -> Episode:
        """Returns its first `steps` steps."""
        if steps >= len(self.rewards):
            return self
        return Episode(
            self.observations[: steps + 1], self.actions[:steps], self.rewards[:steps], False
        )


Chunk = Callable[[int], list[Episode]]
"""`chunk(i)` plays the i-th handful of episodes, the same ones whenever it is called; none: it was all."""

Act = Callable[[np.ndarray, np.random.Generator, int], np.ndarray]
"""`act(observations (n, O), rng, action_dim) -> (n, A)` in [-1, 1]."""


def is_made(name: str, recipe: dict[str, Any]) -> bool:
    """Tells whether the set `corerl/<name>` is on this machine, complete and of this recipe.

    Raises:
        CorerlError: its folder holds other contents, whole or half made.
    """
    folder, parts = suites.folder(name), _parts(name)
    half = files.read_json(parts / "recipe.json")
    if half is not None:
        _require_same(half, recipe, f"corerl/{name} was started with other settings", parts)
        return False
    if not folder.exists():
        return False
    existing = suites.recipe(name) or {}
    _require_same(
        existing, recipe, f"corerl/{name} exists, but was made with other settings", folder
    )
    return True


def collect(
    name: str,
    recipe: dict[str, Any],
    chunk: Chunk,
    size: int,
    *,
    policy: str,
    facts: dict[str, Any],
) -> None:
    """Makes the set `corerl/<name>` of `size` steps, going on from the chunks that are on disk.

    Args:
        recipe: what decides the contents, as JSON; asked for again, the same is found.
        chunk: where the episodes come from; the last one is cut at `size`.
        policy: what acted, for the metadata.
        facts: what else the metadata should say of the set.

    Raises:
        Busy: another process is making it.
    """
    parts = _parts(name)
    busy = f"Another process is making corerl/{name}. Wait for it or stop it."
    with files.held(parts.with_name(f"{parts.name}.lock"), busy):
        if not is_made(name, recipe):  # by another process, since this one asked
            _make(name, recipe, chunk, size, policy, facts)


def _make(
    name: str, recipe: dict[str, Any], chunk: Chunk, size: int, policy: str, facts: dict[str, Any]
) -> None:
    parts = _parts(name)
    files.make_directory(parts)
    files.write_json(parts / "recipe.json", recipe)
    episodes, seconds = _played(name, parts, chunk, size)
    facts = facts | {"seconds": round(seconds, 1)}
    shutil.rmtree(suites.folder(name), ignore_errors=True)  # ours, half written: `parts` says so
    _write(name, recipe, episodes, policy, facts)
    shutil.rmtree(parts)


def _parts(name: str) -> Path:
    """Returns the folder of the chunks until the set is whole."""
    return download.data_dir("corerl") / "making" / name


def _require_same(existing: dict, wanted: dict, problem: str, folder: Path) -> None:
    keys = [key for key in wanted if existing.get(key) != wanted[key]]
    if keys:
        differences = ", ".join(
            f"{key} was {existing.get(key)} and is now {wanted[key]}" for key in keys
        )
        raise CorerlError(
            f"{problem} ({differences}). Give the same settings, or delete {folder} to make it "
            "again."
        )


def _played(name: str, parts: Path, chunk: Chunk, size: int) -> tuple[list[Episode], float]:
    """Returns episodes of `size` steps in all, from the chunks on disk and then from new ones.

    Also the seconds that playing them took, whenever that was.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    steps, number, seconds = 0, 0, 0.0
    episodes: list[Episode] = []
    with Progress(*columns, TimeRemainingColumn()) as progress:
        bar = progress.add_task(f"corerl/{name}", total=size)
        while steps < size:
            path = parts / f"{number:04d}.npz"
            if not path.exists():
                started = time.monotonic()
                fresh = chunk(number)
                if not fresh:
                    break
                _save(path, fresh, started)
            played, took = _load(path)
            seconds += took
            for episode in played:
                if steps < size:
                    episodes.append(episode.cut(size - steps))
                    steps += len(episodes[-1].rewards)
            progress.update(bar, completed=steps)
            number += 1
    return episodes, seconds


def _save(path: Path, episodes: list[Episode], started: float) -> None:
    fields = ("observations", "actions", "rewards")
    arrays = {f: np.concatenate([getattr(e, f) for e in episodes]) for f in fields}
    with replacing(path) as part:
        np.savez(
            part,
            **arrays,
            lengths=[len(e.rewards) for e in episodes],
            terminated=[e.terminated for e in episodes],
            seconds=time.monotonic() - started,
        )


def _load(path: Path) -> tuple[list[Episode], float]:
    with npz(path, "a part of an unfinished dataset") as file:
        parts = dict(file)
    ends = np.cumsum(parts["lengths"])
    episodes = []
    for i, (end, length) in enumerate(zip(ends, parts["lengths"], strict=True)):
        rows = slice(end - length, end)
        states = parts["observations"][rows.start + i : rows.stop + i + 1]
        over = bool(parts["terminated"][i])
        episodes.append(Episode(states, parts["actions"][rows], parts["rewards"][rows], over))
    return episodes, float(parts["seconds"])


def _write(name: str, recipe: dict, episodes: list[Episode], policy: str, facts: dict) -> None:
    """Writes the Minari dataset, which is there once it is whole."""
    import minari
    from minari.data_collector import EpisodeBuffer

    low, high = suites.reference(name) or (None, None)
    with writing(suites.minari_id(name)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the environment is an old version, no permalink, ...
        env = gymnasium.make(recipe["environment"])
        dataset = minari.create_dataset_from_buffers(
            suites.minari_id(name),
            [
                EpisodeBuffer(
                    observations=_as_shown(env.observation_space, episode.observations),
                    actions=episode.actions,
                    rewards=episode.rewards,
                    terminations=_last(episode, episode.terminated),
                    truncations=_last(episode, not episode.terminated),
                    infos={},
                )
                for episode in episodes
            ],
            env=env,
            ref_min_score=low,
            ref_max_score=high,
            algorithm_name=policy,
            author="corerl",
            description=f"Regenerated by corerl data make corerl/{name}. Not D4RL's data.",
        )
        facts = _described(episodes, facts)
        dataset.storage.update_metadata({"corerl_facts": facts, "corerl_recipe": recipe})


def _described(episodes: list[Episode], facts: dict) -> dict:
    """Returns `facts` and what the episodes and the versions that played them say themselves."""
    versions = {
        k: v for k, v in provenance.environment().items() if k in ("corerl", "mujoco", "torch")
    }
    returns = [float(e.rewards.sum(dtype=np.float64)) for e in episodes]
    quartiles = np.quantile(returns, [0, 0.25, 0.5, 0.75, 1]).round(1).tolist()
    facts = facts | {"steps": sum(len(e.rewards) for e in episodes), "episodes": len(episodes)}
    facts = facts | {"return_mean": round(float(np.mean(returns)), 1), "returns": quartiles}
    return facts | versions | {"sha256": checksum(episodes)}


def _as_shown(space: spaces.Space, flat: np.ndarray) -> np.ndarray | dict[str, np.ndarray]:
    return unflattened(space, flat) if isinstance(space, spaces.Dict) else flat


def _last(episode: Episode, value: bool) -> np.ndarray:
    flags = np.zeros(len(episode.rewards), bool)
    flags[-1] = value
    return flags


def checksum(episodes: list[Episode]) -> str:
    """Hashes the episodes' numbers (SHA-256). The file's own hash changes with its library's version."""
    sha = hashlib.sha256()
    for episode in episodes:
        for array in (episode.observations, episode.actions, episode.rewards):
            sha.update(np.ascontiguousarray(array, np.float32).tobytes())
        sha.update(bytes([episode.terminated]))
    return sha.hexdigest()


def play(envs: list[gymnasium.Env], act: Act, seed: int, purpose: str) -> list[Episode]:
    """Plays one whole episode in each environment, with one policy call per step for all of them.

    Whole episodes, so that short ones are not over-represented; the numbers depend on `seed` and
    `purpose` alone.
    """
    rng = np.random.default_rng(seeding.derive(seed, purpose))
    starts = rng.integers(2**31, size=len(envs)).tolist()
    states = [[env.reset(seed=start)[0]] for env, start in zip(envs, starts, strict=True)]
    actions, rewards = [[] for _ in envs], [[] for _ in envs]
    terminated = [False for _ in envs]
    alive, width = list(range(len(envs))), envs[0].action_space.shape[0]
    while alive:
        chosen = act(np.stack([trail[-1] for trail in states]).astype(np.float32), rng, width)
        for i in list(alive):
            state, reward, terminated[i], truncated, _ = envs[i].step(chosen[i])
            states[i].append(state)
            actions[i].append(chosen[i])
            rewards[i].append(reward)
            if terminated[i] or truncated:
                alive.remove(i)
    return [
        Episode(*(np.array(x, np.float32) for x in columns), bool(over))
        for *columns, over in zip(states, actions, rewards, terminated, strict=True)
    ]


def cut_episodes(
    observations: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    next_observations: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
) -> list[Episode]:
    """Cuts recorded rows into episodes. The last one may be unfinished."""
    ends = np.flatnonzero(terminated | truncated) + 1
    if len(ends) == 0 or ends[-1] < len(rewards):
        ends = np.append(ends, len(rewards))
    starts = np.concatenate([[0], ends[:-1]])
    return [
        Episode(
            np.concatenate([observations[start:end], next_observations[end - 1 : end]]),
            actions[start:end],
            rewards[start:end],
            bool(terminated[end - 1]),
        )
        for start, end in zip(starts, ends, strict=True)
    ]
