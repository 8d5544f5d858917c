"""Last and best evaluations of risk-averse runs, by mean and CVaR 0.1, as O-RAAC's authors keep checkpoints.

python results/reproduced/risk_tradeoff/checkpoints.py evaluations.csv --collect runs/risk_updates
python results/reproduced/risk_tradeoff/checkpoints.py evaluations.csv
"""

import argparse
import json
from pathlib import Path

import pandas as pd
import yaml

from corerl.risk.measures import cvar

KEYS = ("perturbation", "tune_alpha", "alpha")


def collect(runs: Path) -> pd.DataFrame:
    """Reads every evaluation under `runs`: a row per configuration, seed and step."""
    rows = []
    for file in sorted(runs.rglob("returns.jsonl")):
        algo = yaml.safe_load((file.parents[1] / "config.yaml").read_text(encoding="utf-8"))["algo"]
        name = " ".join([algo["label"], *(f"{k}={json.dumps(algo[k])}" for k in KEYS if k in algo)])
        for evaluation in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            returns = evaluation["returns"]
            mean, tail = sum(returns) / len(returns), cvar(returns, 0.1)
            rows.append((name, evaluation["seed"], evaluation["step"], len(returns), mean, tail))
    frame = pd.DataFrame(
        rows, columns=["algorithm", "seed", "step", "episodes", "mean", "cvar_0.1"]
    )
    return frame.sort_values(["algorithm", "step", "seed"], kind="stable").round(3)


def show(evaluations: pd.DataFrame) -> None:
    """Prints mean and CVaR 0.1 after each evaluation, and of each seed's best one by either."""
    print("| | evaluation | mean | CVaR 0.1 | seeds |\n| --- | --- | ---: | ---: | ---: |")
    for name, group in evaluations.groupby("algorithm", sort=False):
        for step, rows in group.groupby("step"):
            _line(name, f"after {step:,} updates", rows)
        for key, reported in (("mean", "best mean"), ("cvar_0.1", "best CVaR 0.1")):
            _line(name, f"{reported} of each seed", group.loc[group.groupby("seed")[key].idxmax()])


def _line(name: str, reported: str, rows: pd.DataFrame) -> None:
    mean, tail = (f"{rows[key].mean():.0f} ± {rows[key].std():.0f}" for key in ("mean", "cvar_0.1"))
    print(f"| {name} | {reported} | {mean} | {tail} | {len(rows)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="CSV of evaluations")
    parser.add_argument("--collect", type=Path, help="the runs to make the CSV of")
    arguments = parser.parse_args()
    if arguments.collect:
        collect(arguments.collect).to_csv(arguments.file, index=False)
    show(pd.read_csv(arguments.file))


if __name__ == "__main__":
    main()
