"""Run directories as training writes them, with made-up scores, and sections of a report as it has them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from corerl.report.load import Results
from corerl.report.options import Options
from corerl.report.sections import Section, fill
from corerl.report.sections import sections as begun
from corerl.runs.directory import group_name

COLUMNS = "task,algorithm,config,seed,step,return,score,episodes,length,return_std"


def sections(results: Results, published: pd.DataFrame, options: Options) -> list[Section]:
    found = begun(results, options)
    for section in found:
        fill(section, published, options)
    return found


def write_run(
    root: Path,
    task: str,
    algorithm: str,
    level: float = 50.0,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 3000,
    every: int = 1000,
    config: str = "0a1b2c3d",
    algo: dict | None = None,
    state: str = "done",
    reached: int | None = None,
    diverged: dict[int, int] | None = None,
    normalised: bool = True,
    message: str = "",
    ran: str | None = None,
) -> Path:
    """One group of seeds; the score of seed s at step k is level * k / steps + s. Its folder."""
    cell = root / task / f"{algorithm.lower()}-{config}"
    group = cell / group_name(seeds)
    group.mkdir(parents=True)
    settings = {"task": task, "label": algorithm, "steps": steps, "algo": {"name": algorithm}}
    settings["algo"] |= algo or {}
    (cell / "config.yaml").write_text(yaml.safe_dump(settings))
    reached, diverged = reached or steps, diverged or {}
    lines = [COLUMNS]
    for step in range(every, reached + 1, every):
        for seed in seeds:
            if step >= diverged.get(seed, np.inf):
                continue
            score = level * step / steps + seed
            shown = repr(score) if normalised else ""
            lines.append(
                f"{task},{algorithm},{config},{seed},{step},{10 * score},{shown},10,100,1.5"
            )
    (group / "scores.csv").write_text("\n".join(lines) + "\n")
    status = {"state": state, "step": reached, "steps": steps, "seeds": list(seeds)}
    status |= {"message": message, "diverged": {str(k): v for k, v in diverged.items()}}
    status |= {"compile": ran} if ran else {}
    (group / "status.json").write_text(json.dumps(status))
    environment = {"torch": "2.13.0", "git": "abc1234", "cpu": "a processor", "gpu": None}
    (group / "env.json").write_text(json.dumps(environment))
    return group
