"""Which corners SPO's agents go to, and how often the best reply beats them.

    corerl train sweep=three_corners
    corerl train algo=spo_general task=risk/three-corners algo.model.dimension=1 algo.model.normalize=false \\
        algo.model.temperature=1 steps=6000 seeds=3 root=runs/three_corners
    python results/reproduced/three_corners/corners.py runs/three_corners

Writes curves.csv, with the shares in each tenth of a run, and corners.png beside this file. Prints a table of
the last half.
"""

import csv
import sys
from itertools import groupby
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import yaml
from safetensors.numpy import load_file

from corerl.envs.three_corners import PREFERENCES, STEPS, corner, move
from corerl.preferences.self_play import minimax_winner
from corerl.report.rows import mean_std

HERE = Path(__file__).parent
PLACES = ("corner 0", "corner 1", "corner 2", "middle")
FIELDS = ("comparisons by", "seed", "tenth", *PLACES)
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cccccc")


def judge_of(algo: dict) -> str:
    """Names who compares episodes."""
    dimension = algo["model"]["dimension"]
    return {0: "the teacher", 1: "a reward (Bradley-Terry)"}.get(dimension, "a general model")


def visited(folder: Path) -> dict[int, np.ndarray]:
    """Returns where each seed's episodes ended, `(E,)`."""
    files = sorted((folder / "replay").glob("*.safetensors"))
    rows = np.concatenate([load_file(file)["/state/replay/rows"] for file in files], 1)
    last = rows[:, STEPS - 1 :: STEPS]
    first, _, final = folder.name.removeprefix("seeds-").partition("-")
    seeds = range(int(first), int(final or first) + 1)
    return dict(zip(seeds, corner(move(last[..., :2], last[..., 3:5])), strict=True))


def shares(ends: np.ndarray) -> np.ndarray:
    return np.bincount(ends, minlength=len(PLACES)) / len(ends)


def main() -> None:
    ends = {}
    for path in sorted(Path(sys.argv[1]).rglob("config.yaml")):
        judge = judge_of(yaml.safe_load(path.read_text())["algo"])
        for folder in sorted(path.parent.glob("seeds-*")):
            ends |= {(judge, seed): found for seed, found in visited(folder).items()}
    shortest = min(map(len, ends.values()))  # longer runs count as far as that
    ends = {key: found[:shortest] for key, found in sorted(ends.items())}
    with (HERE / "curves.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for key, found in ends.items():
            for tenth, part in enumerate(np.array_split(found, 10)):
                writer.writerow([*key, tenth, *shares(part).round(4)])
    print("minimax winner:", minimax_winner(PREFERENCES).round(3))
    judges = sorted({judge for judge, _ in ends})
    figure, axes = plt.subplots(1, len(judges), figsize=(7, 2.8), layout="constrained", sharey=True)
    for ax, (judge, group) in zip(
        np.atleast_1d(axes), groupby(ends.items(), key=lambda x: x[0][0]), strict=True
    ):
        own = dict(group)
        halves = np.array([shares(found[len(found) // 2 :]) for found in own.values()])
        beaten = (halves @ PREFERENCES.T).max(1)
        every = " ".join(f"{x:.2f}" for x in beaten)
        print(f"| {judge} | {every} | {mean_std(beaten, 2)} | {halves[:, 3].mean():.2f} |")
        curve = np.array([shares(part) for part in np.array_split(own[judge, 0], 50)])
        ax.stackplot(np.linspace(0, 1, 50), curve.T, colors=COLOURS, labels=PLACES)
        ax.set(title=judge, xlabel="share of the run (seed 0)", xlim=(0, 1), ylim=(0, 1))
    figure.axes[0].set_ylabel("share of episodes")
    figure.axes[0].legend(fontsize=7, loc="lower right")
    figure.savefig(HERE / "corners.png", dpi=150)


if __name__ == "__main__":
    main()
