"""SAC's evaluations beside ten seeds of SimbaV2's repository and of Tianshou's, and its training episodes.

    python results/reproduced/sac/compare.py collect runs/gym --out curves.csv
    python results/reproduced/sac/compare.py table curves.csv --figure curves.png

`collect` writes a row per evaluation, a run named by its first weights, or as Tianshou's where its
temperature is not learned; `training` is the mean of the training episodes that were logged (the last one
finished, every 1,000 steps) since the evaluation before. `table` sets four steps beside
`results/published/sac_curves.csv`, with Welch's 95 % intervals of ours - theirs, for either first weights
and for both together, and prints the training episodes of the last 100,000 steps, the mean of each seed
that made them all.
"""

import argparse
from functools import partial
from pathlib import Path

import pandas as pd

from corerl.report.colours import looks
from corerl.report.drawing import render
from corerl.report.figures import tasks
from corerl.report.stats import welch_interval
from corerl.runs.directory import groups, read_settings
from corerl.runs.files import below, read_lines

STEPS = (100_000, 300_000, 500_000, 1_000_000)
LAST = 100_000  # steps, of training episodes
EITHER = "either"
TIANSHOU = "SAC as Tianshou's"  # algo=sac_tianshou
THEIRS = Path(__file__).parents[2] / "published" / "sac_curves.csv"


def published() -> pd.DataFrame:
    """Returns others' rows, their tasks named as ours: Tianshou's are -v3."""
    rows = pd.read_csv(THEIRS)
    return rows.assign(task=rows["task"].str.replace("-v3", "-v4"))


def collect(root: Path) -> pd.DataFrame:
    """Returns a row per evaluation of each seed below `root`."""
    cells = [config.parent for config in below(root, "config.yaml")]
    rows = pd.concat(_evaluations(folder) for cell in cells for folder, _ in groups(cell))
    return rows.sort_values(["task", "algorithm", "seed", "step"])


def _evaluations(folder: Path) -> pd.DataFrame:
    rows = pd.read_csv(folder / "scores.csv")[["task", "algorithm", "seed", "step", "return"]]
    algo = read_settings(folder.parent)["algo"]
    learned = algo.get("learn_temperature", True)
    rows["algorithm"] = f"SAC init={algo.get('init', 'torch')}" if learned else TIANSHOU
    logged = pd.DataFrame(read_lines(folder / "metrics.jsonl", seed=int, step=int))
    bins = [0, *sorted(rows["step"].unique())]
    logged = logged[logged["step"] <= bins[-1]]
    ends = pd.cut(logged["step"], bins, labels=bins[1:]).astype(int)
    training = logged.groupby(["seed", ends])["episode_return"].mean().rename("training")
    return rows.join(training, on=["seed", "step"]).round(1)


def table(ours: pd.DataFrame, theirs: pd.DataFrame) -> str:
    """Returns both sides, mean ± std over seeds (n), at `STEPS`, and each seed's training episodes."""
    same = ours["algorithm"] == TIANSHOU
    lines = [
        *_beside(ours[~same], theirs[theirs["algorithm"] == "SimbaV2's SAC"], "SimbaV2's"),
        *_beside(ours[same], theirs[theirs["algorithm"] == "Tianshou's SAC"], "Tianshou's"),
    ]
    ends = ours.groupby(["task", "algorithm", "seed"])["step"].transform("max")
    late = ours[(ends == max(STEPS)) & (ours["step"] > max(STEPS) - LAST)]
    for (task, name), rows in late.groupby(["task", "algorithm"]):
        seeds = rows.groupby("seed")["training"].mean()
        reported = " ".join(f"{x:.0f}" for x in seeds)
        lines.append(f"\n{task}, {name}, training: {reported}: {_side(seeds)}")
    return "\n".join(lines)


def _beside(ours: pd.DataFrame, theirs: pd.DataFrame, name: str) -> list[str]:
    lines = [
        f"| task | steps | algorithm | ours | {name} | difference [95%] |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    found = ours[ours["step"].isin(STEPS)]
    several = found.groupby("task")["algorithm"].transform("nunique") > 1
    found = pd.concat([found, found[several].assign(algorithm=EITHER)])
    for (task, step, algorithm), x in found.groupby(["task", "step", "algorithm"])["return"]:
        y = theirs.loc[(theirs["task"] == task) & (theirs["step"] == step), "return"]
        low, high = welch_interval(x.mean(), x.std(), len(x), y.mean(), y.std(), len(y))
        interval = f" [{low:+.0f}, {high:+.0f}]" if len(x) > 1 else ""
        reported = f"{x.mean() - y.mean():+.0f}{interval}"
        lines.append(f"| {task} | {step:,} | {algorithm} | {_side(x)} | {_side(y)} | {reported} |")
    return [*lines, ""] if len(found) else []


def figure(ours: pd.DataFrame, theirs: pd.DataFrame) -> bytes:
    """Returns the curves of the tasks that ours have as PNG, ours of the seeds that went furthest."""
    last, furthest = (
        ours.groupby(keys)["step"].transform("max")
        for keys in (["task", "algorithm", "seed"], "task")
    )
    rows = pd.concat([ours[last == furthest], theirs[theirs["task"].isin(ours["task"])]])
    rows = rows.rename(columns={"return": "score"})
    return render(partial(tasks, rows, looks(rows["algorithm"]), "return"), "sac")[0]


def _side(seeds: pd.Series) -> str:
    spread = f" ± {seeds.std():.0f}" if len(seeds) > 1 else ""
    return f"{seeds.mean():.0f}{spread} ({len(seeds)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    part = commands.add_parser("collect", help="runs -> one CSV")
    part.add_argument("root", type=Path)
    part.add_argument("--out", type=Path, required=True)
    part = commands.add_parser("table", help="that CSV beside the published curves")
    part.add_argument("file", type=Path)
    part.add_argument("--figure", type=Path, metavar="PNG", help="draw the curves of both")
    args = parser.parse_args()
    if args.command == "collect":
        collect(args.root).to_csv(args.out, index=False, lineterminator="\n")
    else:
        ours, theirs = pd.read_csv(args.file), published()
        print(table(ours, theirs))
        if args.figure:
            args.figure.write_bytes(figure(ours, theirs))


if __name__ == "__main__":
    main()
