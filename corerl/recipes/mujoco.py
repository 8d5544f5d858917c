"""`corerl/mujoco`: Hopper, HalfCheetah and Walker2d at five qualities, by D4RL's recipe (Fu et al. 2020).

    random         uniform actions
    medium-replay  the whole replay buffer of a SAC run up to the medium policy
    medium         sampled actions of that run's policy when it first scores a third of an expert
    expert         sampled actions of the policy at the run's end
    medium-expert  medium, then expert

    corerl data make corerl/mujoco                    all fifteen sets
    corerl data make corerl/mujoco/hopper-medium      one of them
    corerl data make corerl/mujoco/hopper --size 200000 --steps 500000

An expert scores 100 by D4RL's definition, so medium is the first evaluation (every 5,000 steps, ten
episodes of the deterministic policy) at 33.3 or more on D4RL's scale, whatever the run's own end will
score. The run is `corerl train algo=sac task=gym/Hopper-v4` with the settings of configs/sac.yaml.
Everything is kept as it goes: a run resumes from its checkpoint, a collection from its last chunk.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from omegaconf import OmegaConf

from corerl import seeding
from corerl.algos import sac
from corerl.buffers.replay import ReplayBuffer
from corerl.config import Config, Eval
from corerl.data import download, suites
from corerl.data.dataset import Dataset
from corerl.data.tasks import resolve
from corerl.errors import CorerlError
from corerl.launch.process_setup import numerics
from corerl.launch.train import typed
from corerl.launch.worker import locked
from corerl.nn.learner import Spec
from corerl.recipes import collecting
from corerl.recipes.collecting import Act, Chunk, Episode, cut_episodes
from corerl.runs import files
from corerl.runs.checkpoint import load_checkpoint, path_in
from corerl.runs.directory import cell_directory, config_hash, group_name
from corerl.runs.progress import Display
from corerl.training.run import Run
from corerl.training.stopping import Interrupted

SIZE = 200_000  # steps per set; D4RL's have 1M
STEPS = 1_000_000  # environment steps of the SAC run, whose end is the expert
MEDIUM = 100 / 3  # score on D4RL's scale
AT_ONCE = 10  # episodes that are played together
VERSION = 1  # raised when the recipe changes


def make(wanted: list[str], seed: int, size: int | None, steps: int | None) -> dict[str, bool]:
    """Makes these sets. `{name: False}` for one that was there already.

    Raises:
        CorerlError: a set exists with other contents, or SAC never reached the medium score.
        Interrupted: stopped by a signal, after saving.
    """
    order = ("random", "medium-replay", "medium", "expert", "medium-expert")  # the cheap ones first
    wanted = sorted(wanted, key=lambda name: order.index(_parts(name)[1]))
    return {name: make_one(name, seed, size or SIZE, steps or STEPS) for name in wanted}


def make_one(name: str, seed: int, size: int, steps: int) -> bool:
    """Makes one set of `size` steps (both halves of medium-expert, while medium-replay has its own size)."""
    environment, quality = suites.ENVIRONMENTS[name], _parts(name)[1]
    cfg = settings(environment, seed, steps)
    recipe = {"version": VERSION, "seed": seed, "environment": environment}
    if quality != "medium-replay":
        recipe["size"] = size
    if quality != "random":
        recipe["sac"] = config_hash(cfg)
    if collecting.is_made(name, recipe):
        return False
    policy = "uniform actions" if quality == "random" else "SAC"
    chunk, size, facts = _source(name, quality, cfg, seed, size)
    collecting.collect(name, recipe, chunk, size, policy=policy, facts=facts)
    return True


def _source(name: str, quality: str, cfg: Config, seed: int, size: int) -> tuple[Chunk, int, dict]:
    """Returns the source of the set, the number of steps to take, and facts about the policy."""
    if quality == "random":
        return _rollouts(cfg, _uniform, seed, name), size, {}
    if quality == "medium-expert":
        halves = [name.replace(quality, half) for half in ("medium", "expert")]
        for half in halves:
            make_one(half, seed, size, cfg.steps)
        both = [episode for half in halves for episode in _episodes(suites.load(half))]
        return lambda _: both, 2 * size, {}
    saved = trained(cfg, medium=quality != "expert")
    status = saved["loop"]["status"]
    facts = {
        "policy_step": saved["loop"]["step"],
        "policy_return": round(status["return"], 1),
        "policy_score": round(score(cfg, status["return"]), 1),
    }
    if quality == "medium-replay":
        replayed = _replayed(cfg, saved)
        return lambda _: replayed, saved["loop"]["step"], facts
    return _rollouts(cfg, _sampled(cfg, saved), seed, name), size, facts


def _parts(name: str) -> tuple[str, str]:
    """Splits `mujoco/hopper-medium-replay-regenerated` into `hopper`, `medium-replay`."""
    body, _, quality = name.removeprefix("mujoco/").removesuffix("-regenerated").partition("-")
    return body, quality


# The SAC run.


def settings(environment: str, seed: int, steps: int) -> Config:
    """Returns the SAC run of this environment, with the settings of configs/sac.yaml."""
    cfg = Config(
        algo=sac.Config(),
        task=f"gym/{environment}",
        seeds=[seed],
        steps=steps,
        eval=Eval(every=5_000, episodes=10),
        save_every=50_000,  # a checkpoint holds the replay
        root=str(download.data_dir("corerl") / "mujoco-runs"),
        device="cpu",
    )
    return typed(OmegaConf.structured(cfg), [])


def score(cfg: Config, result: float) -> float:
    """Scales a return to D4RL's scores, x100."""
    names = {env: name for name, env in suites.ENVIRONMENTS.items()}
    low, high = suites.reference(names[cfg.task.removeprefix("gym/")])
    return 100 * (result - low) / (high - low)


class UntilMedium(Run):
    """A run that stops, saved, at the first evaluation that scores `MEDIUM` or more."""

    def evaluate(self, step, act, also=None) -> None:
        super().evaluate(step, act, also)
        self._stop = self._stop or _at_medium(self.cfg, self.record.status, step)


def _at_medium(cfg: Config, status: dict[str, Any], step: int) -> bool:
    return status.get("evaluated") == step and score(cfg, status["return"]) >= MEDIUM


def trained(cfg: Config, *, medium: bool) -> dict[str, Any]:
    """Returns the checkpoint of the medium policy, or of the run's end, trained as far as is missing."""
    directory = cell_directory(cfg) / group_name(cfg.seeds)
    latest, kept = path_in(directory), directory / "medium.safetensors"
    if not kept.exists():
        if not _stands_at_medium(cfg, latest):
            _train(UntilMedium, cfg, directory)
        if not _stands_at_medium(cfg, latest):
            raise CorerlError(
                f"SAC on {cfg.task} did not reach a score of {MEDIUM:.1f} within {cfg.steps:,} "
                f"steps ({directory}). Raise --steps, or choose another --seed."
            )
        shutil.copyfile(latest, kept.with_suffix(".part"))
        kept.with_suffix(".part").replace(kept)
    if medium:
        return load_checkpoint(kept)
    if (files.read_json(directory / "status.json") or {}).get("state") != "done":
        _train(Run, cfg, directory)
    return load_checkpoint(latest)


def _stands_at_medium(cfg: Config, checkpoint: Path) -> bool:
    if not checkpoint.exists():
        return False
    loop = load_checkpoint(checkpoint)["loop"]
    return _at_medium(cfg, loop["status"], loop["step"])


def _train(kind: type[Run], cfg: Config, directory: Path) -> None:
    """Resumes the run to its end, or for `UntilMedium` to where that stops it."""
    goal = f", until it scores {MEDIUM:.1f}" if kind is UntilMedium else ""
    title = f"{cfg.algo.label} {cfg.task}{goal}"
    display = Display(title, [cfg.seeds], 1, cfg.steps)
    with numerics(cfg, 1), display, locked(directory):
        run = kind(cfg, cfg.seeds, display.show)
        try:
            sac.train(cfg.algo, run)
        except Interrupted:
            run.fail("interrupted", "stopped")
            if not (kind is UntilMedium and _stands_at_medium(cfg, path_in(directory))):
                raise


# Episodes.


def _rollouts(cfg: Config, act: Act, seed: int, name: str) -> Chunk:
    """Handfuls of whole episodes by `act`, the i-th always the same."""
    envs = []

    def chunk(number: int) -> list[Episode]:
        if not envs:
            envs.extend(resolve(cfg.task).make_env() for _ in range(AT_ONCE))
        return collecting.play(envs, act, seed, f"{name}/{number}")

    return chunk


def _uniform(observations: np.ndarray, rng: np.random.Generator, actions: int) -> np.ndarray:
    return rng.uniform(-1, 1, (len(observations), actions)).astype(np.float32)


def _sampled(cfg: Config, saved: dict[str, Any]) -> Act:
    """Returns the saved policy's sampled actions, as D4RL's. Its mean is never recorded."""
    agent = _agent(cfg)
    agent.load_state_dict(saved["state"]["agent"])

    def act(observations: np.ndarray, rng: np.random.Generator, actions: int) -> np.ndarray:
        noise = rng.standard_normal((1, len(observations), actions), np.float32)
        return agent.explore(torch.from_numpy(observations)[None], torch.from_numpy(noise))[
            0
        ].numpy()

    return act


def _agent(cfg: Config) -> sac.SAC:
    return sac.SAC(cfg.algo, Spec(*_sizes(cfg), seeding.generators(cfg.seeds, "init")))


def _sizes(cfg: Config) -> tuple[int, int]:
    env = resolve(cfg.task).make_env()
    return env.observation_space.shape[0], env.action_space.shape[0]


def _replayed(cfg: Config, saved: dict[str, Any]) -> list[Episode]:
    """Returns every episode of the run so far, the last one as far as it went."""
    replay = ReplayBuffer(*_sizes(cfg), saved["loop"]["step"], cfg.seeds, 1)
    replay.load_state_dict(saved["state"]["replay"])
    return cut_episodes(*replay.recorded())


def _episodes(dataset: Dataset) -> list[Episode]:
    return cut_episodes(
        dataset.observations,
        dataset.actions,
        dataset.rewards,
        dataset.next_observations,
        dataset.terminated,
        dataset.truncated,
    )


def package(checkpoint: Path, path: Path, bits: int = 16) -> None:
    """Writes a SAC run's replay as a file of the package, with `bits` of each number's mantissa.

    Rounded to 16 of 23 bits (8e-6 of each number, thousands of times less than one step changes it),
    60,000 steps of HalfCheetah take under 4 MB. An observation is stored once; only the states that
    episodes end in are stored besides. The packaged file is from

        corerl train algo=sac task=gym/HalfCheetah-v4 seeds=[0] steps=60000

    with the settings of configs/sac.yaml (torch 2.13, mujoco 3.3.0), which ended at a score of 34.5 and
    had scored 36.7 before.
    """
    saved = load_checkpoint(checkpoint)
    rows = saved["state"]["replay"]["rows"].shape[1]
    cfg = settings("HalfCheetah-v4", 0, rows)
    episodes = _replayed(cfg, saved)
    steps = {name: [getattr(e, name) for e in episodes] for name in ("actions", "rewards")}
    arrays = {
        "observations": [e.observations[:-1] for e in episodes],
        "last_observations": [e.observations[-1:] for e in episodes],
    }
    with h5py.File(path, "w", track_order=True) as file:
        for name, parts in (arrays | steps).items():
            values = rounded(np.concatenate(parts), bits)
            file.create_dataset(
                name, data=values, compression="gzip", compression_opts=9, shuffle=True
            )
        ends = np.cumsum([len(e.rewards) for e in episodes]) - 1
        for name, flag in (("terminals", True), ("timeouts", False)):
            values = np.zeros(ends[-1] + 1, bool)
            values[ends] = [e.terminated == flag for e in episodes]
            file.create_dataset(name, data=values, compression="gzip")


def rounded(values: np.ndarray, bits: int) -> np.ndarray:
    """Rounds float32 numbers to the nearest with `bits` bits of mantissa."""
    drop = 23 - bits
    raw = values.astype(np.float32).view(np.uint32)
    return ((raw + (1 << (drop - 1))) >> drop << drop).astype(np.uint32).view(np.float32)


if __name__ == "__main__":
    # python -m corerl.recipes.mujoco RUN/checkpoint.safetensors FILE.hdf5
    package(Path(sys.argv[1]), Path(sys.argv[2]))
