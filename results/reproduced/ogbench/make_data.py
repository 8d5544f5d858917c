"""Makes OGBench's `cube-single-play` data anew: its scripted robot, in chunks that each have a seed.

    python make_data.py play chunks --first 0 --last 10      # and 10 to 20 on another core
    python make_data.py join chunks $CORERL_DATA/ogbench/cube-single-play-v0.npz

Twenty chunks of 50 episodes of 1,001 rows are as many as were published. Theirs were drawn without a seed.
"""

import argparse
from pathlib import Path

import gymnasium
import numpy as np
import ogbench.manipspace  # noqa: F401  registers the environments
from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle

EPISODES, ROWS = 50, 1001
KEYS = ("observations", "actions", "terminals", "qpos", "qvel")


def play(seed: int) -> dict[str, np.ndarray]:
    """Plays a chunk of episodes; the oracle draws from numpy's global generator, as the environment does."""
    np.random.seed(seed)  # noqa: NPY002  the generator of both
    env = gymnasium.make(
        "cube-single-v0", terminate_at_goal=False, mode="data_collection", max_episode_steps=ROWS
    )
    oracle = CubePlanOracle(env=env, noise=0.1, noise_smoothing=0.5)
    columns: dict[str, list] = {key: [] for key in KEYS}
    for episode in range(EPISODES):
        observation, info = env.reset(seed=seed if episode == 0 else None)
        oracle.reset(observation, info)
        ended = False
        while not ended:
            action = np.clip(oracle.select_action(observation, info), -1, 1)
            following, _, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
            if oracle.done:
                oracle.reset(*env.unwrapped.set_new_target(p_stack=0.0))
            row = (observation, action, ended, info["prev_qpos"], info["prev_qvel"])
            for key, value in zip(KEYS, row, strict=True):
                columns[key].append(value)
            observation = following
    kinds = {key: bool if key == "terminals" else np.float32 for key in KEYS}
    return {key: np.asarray(column, kinds[key]) for key, column in columns.items()}


def make(folder: Path, first: int, last: int) -> None:
    """Writes the chunks that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(first, last):
        file = folder / f"{seed:02}.npz"
        if not file.exists():
            with open(file.with_suffix(".part"), "wb") as part:
                np.savez_compressed(part, **play(seed))
            file.with_suffix(".part").rename(file)
            print(file, flush=True)


def join(folder: Path, out: Path) -> None:
    """Writes all chunks as one file in OGBench's layout."""
    chunks = [np.load(file) for file in sorted(folder.glob("*.npz"))]
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(out, **{key: np.concatenate([chunk[key] for chunk in chunks]) for key in KEYS})


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="what", required=True)
    making, joining = (commands.add_parser(name) for name in ("play", "join"))
    for command in (making, joining):
        command.add_argument("folder", type=Path)
    making.add_argument("--first", type=int, default=0)
    making.add_argument("--last", type=int, default=20)
    joining.add_argument("out", type=Path)
    args = vars(parser.parse_args())
    {"play": make, "join": join}[args.pop("what")](**args)


if __name__ == "__main__":
    main()
