"""Everything that corerl reads, as a small valid file of each kind."""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import datasets
import numpy as np
import torch
import yaml
from damage import Reader

from corerl.policies import load
from corerl.preferences import label_session, pickles, readers
from corerl.preferences.comparisons import Comparisons
from corerl.report import load as report
from corerl.report import risk
from corerl.report.published import read_published
from corerl.report.scorefiles import read_d3rlpy_curves, read_file, read_neorl2, read_scores
from corerl.runs import checkpoint, files
from corerl.runs.directory import read_settings, read_status
from corerl.runs.log import Log
from corerl.runs.score_rows import SCORE_COLUMNS


def make(name: str, folder: Path) -> Reader:
    """A valid file of the kind `name` in `folder`, and its reader."""
    folder.mkdir(parents=True, exist_ok=True)
    return KINDS[name](folder)


# What a run leaves.


def _checkpoint(folder: Path) -> Reader:
    path = folder / "checkpoint.safetensors"
    agent = {"weights": torch.arange(40.0).view(4, 10), "counts": [1, 2], "name": "a"}
    checkpoint.save_checkpoint(path, {"loop": {"step": 10, "seeds": {0: 3}}, "state": agent})
    return Reader(path, lambda: checkpoint.load_checkpoint(path), True)


def _log(folder: Path) -> Reader:
    path = folder / "metrics.jsonl"
    log = Log(path)
    log.append(json.dumps({"step": step, "seed": 0, "loss": 0.5}) for step in range(20))
    state = log.state_dict()

    def read() -> bytes:
        Log(path).load_state_dict(state)
        return path.read_bytes()

    return Reader(path, read, True)


def _label_array(folder: Path) -> Reader:
    path = folder / "label_human"
    path.write_bytes(pickle.dumps(np.arange(20), 4))
    return Reader(path, lambda: pickles.read_integers(path))


def _label_list(folder: Path) -> Reader:
    path = folder / "indices"
    path.write_bytes(pickle.dumps([np.int64(3), 5, *range(10)], 2))
    return Reader(path, lambda: pickles.read_integers(path))


def _comparisons(folder: Path) -> Reader:
    path, rows = folder / "c.npz", datasets.dataset()
    starts, labels = np.array([[0, 9], [1, 16]]), np.array([0.0, 1.0])
    readers.write(path, Comparisons.of_dataset(rows, starts, 4, labels, "teacher"), rows)
    return Reader(path, lambda: readers.read_own(path, rows), True)


def _segments(folder: Path) -> Reader:
    rng = np.random.default_rng(0)
    path = folder / "s_train.npz"
    arrays = {f"obs_{i}": rng.normal(size=(3, 4, 2)).astype(np.float32) for i in (1, 2)}
    arrays |= {f"action_{i}": rng.uniform(-1, 1, (3, 4, 1)).astype(np.float32) for i in (1, 2)}
    np.savez(path, **arrays, label=np.array([0.0, 0.5, 1.0]))
    return Reader(path, lambda: readers.read_ipl(path, "a", "test/a"), True)


def _status(folder: Path) -> Reader:
    facts = {"state": "done", "step": 40, "message": "", "diverged": {"0": 3}, "score": 1.5}
    files.write_json(folder / "status.json", facts)
    return Reader(folder / "status.json", lambda: read_status(folder))


def _settings(folder: Path) -> Reader:
    values = {"task": "corerl/pendulum", "label": None, "seeds": [0, 3], "steps": 40}
    values["algo"] = {"name": "bc", "label": "BC", "lr": 3e-4}
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return Reader(folder / "config.yaml", lambda: read_settings(folder))


def _scores(folder: Path) -> Reader:
    path = folder / "scores.csv"
    row = "corerl/pendulum,BC,0a1b2c3d,{},{},-100.5,50.25,10,200.0,3.5,"
    rows = [row.format(seed, step) for step in (10, 20) for seed in (0, 1)]
    path.write_text("\n".join([SCORE_COLUMNS, *rows]) + "\n")
    return Reader(path, lambda: read_scores(path, running=False).to_dict())


def _label_session(folder: Path) -> Reader:
    path, rows = folder / "l.npz", datasets.dataset()
    session = label_session.Session(rows, path, 4, 3, 0, "me")
    for pair, label in enumerate((0.0, 1.0, 0.5)):
        session.answer(pair, label)

    def read() -> dict[str, Any]:
        label_session.Session(rows, path, 4, 3, 0, "")
        return label_session.read(path)

    return Reader(path, read, True)


def _labels_of_people(folder: Path) -> Reader:
    place = folder / "hopper-medium-v2"
    place.mkdir()
    for number, name in enumerate(("indices_num3", "indices_2_num3")):
        (place / name).write_bytes(pickle.dumps(np.array([3, 9, 1]) + number, 4))
    (place / "label_human").write_bytes(pickle.dumps(np.array([0, 1, -1]), 4))
    read = lambda: readers.read_rows("pt", folder, "hopper-medium-v2")._asdict()  # noqa: E731
    return Reader(place / "label_human", read)


def _labels_of_a_script(folder: Path) -> Reader:
    place, ending = folder / "a_fake_labels", "domain_b_env_a_num_3_len_20_0.pkl"
    place.mkdir()
    for name in ("indices_1", "indices_2"):
        (place / f"{name}_{ending}").write_bytes(pickle.dumps(np.array([3, 9, 1]), 4))
    labels = np.array([[1, 0], [0, 1], [0.5, 0.5]])
    path = place / f"fake_label_{ending}"
    path.write_bytes(pickle.dumps(labels, 4))
    return Reader(path, lambda: readers.read_rows("uni_rlhf_scripted", folder, "a")._asdict())


# A run's folder, as a report and a policy's loader see it.


def _cell(folder: Path) -> Path:
    """A finished run, of which nothing but the checkpoint is missing."""
    cell = folder / "corerl/pendulum/dt-0a1b2c3d"
    (cell / "seeds-0").mkdir(parents=True)
    settings = {"task": "corerl/pendulum", "label": None, "seeds": 1, "steps": 20}
    settings["algo"] = {"name": "cvar", "label": "CVaR", "tau": 0.25, "objective": "static"}
    (cell / "config.yaml").write_text(yaml.safe_dump(settings))
    status = {"state": "done", "step": 20, "steps": 20, "seeds": [0], "diverged": {}}
    files.write_json(cell / "seeds-0/status.json", status)
    files.write_json(cell / "seeds-0/env.json", {"torch": "2.0", "cpu": "a", "threads": 1})
    rows = [f"corerl/pendulum,CVaR,0a1b2c3d,0,{n},-100.5,50.25,10,200.0,3.5," for n in (10, 20)]
    (cell / "seeds-0/scores.csv").write_text("\n".join([SCORE_COLUMNS, *rows]) + "\n")
    lines = [{"seed": 0, "step": n, "returns": [1.5, -3.0]} for n in (10, 20)]
    (cell / "seeds-0/returns.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return cell


def _reported(name: str) -> Callable[[Path], Reader]:
    def make(folder: Path) -> Reader:
        cell = _cell(folder)

        def read() -> list:
            found = report.load([folder])
            returns = risk.read_returns(found.scores)
            found.scores["file"] = found.runs["file"] = ""
            tables = [table.to_dict("list") for table in (found.scores, found.runs, returns)]
            return [*tables, list(found.settings.values()), list(found.environments.values())]

        return Reader(cell / name, read)

    return make


def _loaded(folder: Path) -> Reader:
    values = {"task": "corerl/pendulum", "seeds": [0, 3], "steps": 40, "eval": {"every": 5}}
    values["algo"] = {"name": "bc", "label": "BC", "lr": 3e-4, "batch_size": 16}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return Reader(path, lambda: load.settings(folder), share=0.5)


# Scores that others published.


def _profiles(folder: Path) -> Reader:
    path = folder / "profiles.json.gz"
    content = {"TD3 + BC": {"hopper-medium-v2": {"a": {"b": [50.5, 60.25]}, "c": [40, 41.5]}}}
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    return Reader(path, lambda: _tidy(read_file(path)), True)


def _curves(folder: Path) -> Reader:
    path, key = folder / "curves.npz", "d4rl/IQL/hopper-medium-v2/online"
    scores = np.arange(6.0).reshape(2, 3)
    np.savez(path, **{key: scores, f"{key}/steps": np.array([10, 20, 30])})
    return Reader(path, lambda: _tidy(read_d3rlpy_curves(path)), True)


def _grid(folder: Path) -> Reader:
    path = folder / "final_scores.csv"
    row = '{i},BC,Fusion,"{i}_actor_lr=0.0001,seed={i},mode=a",{i},-{i}.25'
    rows = [row.format(i=i) for i in range(1, 5)]
    path.write_text("\n".join([",algo,task,config,seed,reward_mean", *rows]) + "\n")
    return Reader(path, lambda: _tidy(read_neorl2(path)))


def _published(folder: Path) -> Reader:
    path = folder / "published.csv"
    rows = [f"BC,d4rl/hopper-{x}-v2,50.5,3.25,5,1000000,Table 1 of a paper" for x in "abc"]
    path.write_text("\n".join(["algorithm,task,mean,std,seeds,steps,source", *rows]) + "\n")
    return Reader(path, lambda: read_published(str(path)).to_dict("list"))


def _tidy(table) -> dict[str, list]:
    return table.drop(columns="file").to_dict("list")


KINDS: dict[str, Callable[[Path], Reader]] = {
    "checkpoint": _checkpoint,
    "metrics.jsonl beside its checkpoint": _log,
    "status.json": _status,
    "config.yaml": _settings,
    "config.yaml of a policy that is loaded": _loaded,
    **{f"{name}, in a report": _reported(name) for name in ("config.yaml", "seeds-0/status.json")},
    **{
        f"{name}, in a report": _reported(f"seeds-0/{name}")
        for name in ("env.json", "returns.jsonl")
    },
    "scores.csv": _scores,
    "ReBRAC's profiles": _profiles,
    "d3rlpy's curves": _curves,
    "NeoRL-2's scores": _grid,
    "published numbers": _published,
    "pickle of an array": _label_array,
    "pickle of a list": _label_list,
    "people's labels": _labels_of_people,
    "a script's labels": _labels_of_a_script,
    "comparisons": _comparisons,
    "a labeller's session": _label_session,
    "IPL's segments": _segments,
    **datasets.KINDS,
    **commands.KINDS,
}
