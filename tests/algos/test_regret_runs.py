"""ELA and ICVaR through the whole loop: stopping and resuming, seeds, tasks that do not fit."""

import contextlib
import json

import pytest
from small import flatten

from corerl.algos import ela, icvar
from corerl.config import Config, Eval
from corerl.errors import CorerlError
from corerl.runs.checkpoint import load_checkpoint
from corerl.training.run import Interrupted, Run

SETTINGS = {
    "ela": (ela, ela.Config(), "risk/low-rank"),
    "linear": (icvar, icvar.Config(), "risk/linear-mixture"),
    "general": (icvar, icvar.Config(kind="general"), "risk/linear-mixture"),
    "preferences": (icvar, icvar.Config(kind="preferences"), "risk/linear-mixture"),
}


def run(root, name: str, seeds=(0, 4), stop_at: int | None = None, task: str | None = None):
    module, algo, own = SETTINGS[name]
    cfg = Config(
        algo=algo,
        task=task or own,
        steps=12,
        log_every=3,  # so that means are half taken where a run stops
        save_every=5,
        eval=Eval(every=12, episodes=3),
        root=str(root),
    )
    job = Run(cfg, seeds, lambda *_: None)
    if stop_at is not None:
        save = job.save
        job.save = lambda step: (save(step), setattr(job, "_stop", step == stop_at))
    with contextlib.suppress(Interrupted):
        module.train(cfg.algo, job)
    return job.directory


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_stopped_and_resumed_ends_as_an_unbroken_one(tmp_path, name):
    unbroken = run(tmp_path / "unbroken", name)
    run(tmp_path / "broken", name, stop_at=7)
    broken = run(tmp_path / "broken", name)
    for file in ("metrics.jsonl", "scores.csv", "returns.jsonl"):
        assert (unbroken / file).read_text() == (broken / file).read_text()
    ends = [
        flatten(load_checkpoint(d / "checkpoint.safetensors")["state"]) for d in (unbroken, broken)
    ]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_seed_among_others_is_the_seed_alone(tmp_path, name):
    both = run(tmp_path / "both", name)
    alone = run(tmp_path / "alone", name, seeds=(4,))
    lines = [json.loads(line) for line in (both / "metrics.jsonl").read_text().splitlines()]
    own = [json.loads(line) for line in (alone / "metrics.jsonl").read_text().splitlines()]
    assert [line for line in lines if line["seed"] == 4] == own


@pytest.mark.parametrize(
    ("name", "message"), [("ela", "no classes"), ("linear", "no known mixture")]
)
def test_tasks_that_do_not_fit_are_refused(tmp_path, name, message):
    with pytest.raises(CorerlError, match=rf"risk/A .*{message}|risk/A is {message}"):
        run(tmp_path, name, task="risk/A")
