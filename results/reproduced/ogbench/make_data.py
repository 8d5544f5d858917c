"""Makes OGBench's data anew by its own rules, in chunks that each have a seed.

    python make_data.py play cube-single-play chunks --first 0 --last 10   # and 10 to 20 on another core
    python make_data.py join chunks $CORERL_DATA/ogbench/cube-single-play-v0.npz
    python make_data.py play pointmaze-medium-navigate maze --last 20
    python make_data.py play pointmaze-medium-stitch stitch --last 20

Twenty chunks are as many rows as were published. Theirs were drawn without a seed. In `cube-single-play` the
package's robot follows its script. A point in a maze goes in the direction of the next cell on the shortest
way, with normal noise of 0.5. In `navigate` it goes from one crossing or corner to another, in `stitch` to a
cell that is four steps away, where it stays. Other robots of the mazes need policies that are not published.
"""

import argparse
from pathlib import Path

import gymnasium
import numpy as np
import ogbench.locomaze  # noqa: F401
import ogbench.manipspace  # noqa: F401  registers the environments
from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle

EPISODES, ROWS = 50, 1001
SHORT = (250, 201)
"""Episodes of a chunk of `stitch`, and their rows."""
NEARBY, NOISE = 4, 0.5
KEYS = ("observations", "actions", "terminals", "qpos", "qvel")


def play(dataset: str, seed: int) -> dict[str, np.ndarray]:
    """Plays a chunk of episodes; rules and environments draw from numpy's global generator."""
    np.random.seed(seed)  # noqa: NPY002
    if dataset == "cube-single-play":
        return play_cube(seed)
    name, kind = dataset.rsplit("-", 1)
    return play_maze(name, kind == "stitch", seed)


def play_maze(name: str, short: bool, seed: int) -> dict[str, np.ndarray]:
    """Plays a chunk of a point's episodes."""
    episodes, rows = SHORT if short else (EPISODES, ROWS)
    env = gymnasium.make(f"{name}-v0", terminate_at_goal=False, max_episode_steps=rows)
    maze = env.unwrapped
    cells = [tuple(cell) for cell in np.argwhere(maze.maze_map == 0)]
    crossings = [cell for cell in cells if not in_a_hallway(maze.maze_map, *cell)]
    columns: dict[str, list] = {key: [] for key in KEYS}
    for episode in range(episodes):
        start = drawn(cells)
        goal = drawn(near(maze, start) or [start]) if short else drawn(crossings)
        task = {"init_ij": start, "goal_ij": goal}
        options = {"task_info": task}
        observation, _ = env.reset(seed=seed if episode == 0 else None, options=options)
        ended = False
        while not ended:
            here = maze.get_xy()
            ahead = maze.get_oracle_subgoal(here, maze.cur_goal_xy)[0] - here
            direction = ahead / (np.linalg.norm(ahead) + 1e-6)
            noise = np.random.normal(0, NOISE, 2)  # noqa: NPY002
            action = np.clip(direction + noise, -1, 1)
            following, _, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
            if info["success"] and not short:
                maze.set_goal(drawn(crossings))
            row = (observation, action, ended, info["prev_qpos"], info["prev_qvel"])
            for key, value in zip(KEYS, row, strict=True):
                columns[key].append(value)
            observation = following
    return arrays(columns)


def drawn(cells: list) -> tuple:
    return cells[np.random.randint(len(cells))]  # noqa: NPY002


def in_a_hallway(walls: np.ndarray, row: int, column: int) -> bool:
    """Tells whether a cell has two free neighbours, opposite each other."""
    free = (
        [walls[row - 1, column], walls[row + 1, column]],
        [walls[row, column - 1], walls[row, column + 1]],
    )
    return [0, 0] in free and [1, 1] in free


def near(maze, start: tuple) -> list[tuple]:
    """Returns the cells whose shortest way from `start` has `NEARBY` steps."""
    _, steps = maze.get_oracle_subgoal(maze.ij_to_xy(start), maze.ij_to_xy(start))
    return [tuple(cell) for cell in np.argwhere(steps == NEARBY)]


def arrays(columns: dict[str, list]) -> dict[str, np.ndarray]:
    kinds = {key: bool if key == "terminals" else np.float32 for key in KEYS}
    return {key: np.asarray(column, kinds[key]) for key, column in columns.items()}


def play_cube(seed: int) -> dict[str, np.ndarray]:
    """Plays a chunk of the robot's episodes."""
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
    return arrays(columns)


def make(dataset: str, folder: Path, first: int, last: int) -> None:
    """Writes the chunks that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(first, last):
        file = folder / f"{seed:02}.npz"
        if not file.exists():
            with open(file.with_suffix(".part"), "wb") as part:
                np.savez_compressed(part, **play(dataset, seed))
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
    making.add_argument("dataset")
    for command in (making, joining):
        command.add_argument("folder", type=Path)
    making.add_argument("--first", type=int, default=0)
    making.add_argument("--last", type=int, default=20)
    joining.add_argument("out", type=Path)
    args = vars(parser.parse_args())
    {"play": make, "join": join}[args.pop("what")](**args)


if __name__ == "__main__":
    main()
