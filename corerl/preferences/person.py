"""A person as the teacher of a run: its questions on the page of `corerl label`, while training waits."""

from __future__ import annotations

import threading
import time
import webbrowser

import numpy as np

from corerl.data.dataset import Dataset
from corerl.preferences.asking import Questions
from corerl.preferences.label_pictures import Pictures
from corerl.preferences.label_server import Server
from corerl.preferences.label_session import SKIPPED, Session
from corerl.training.run import Run
from corerl.training.stopping import Interrupted

PAUSE = 0.2
"""Seconds between looks at whether all has been answered."""


def ask(run: Run, questions: Questions, observation_dim: int, number: int) -> np.ndarray:
    """Asks a session's questions and returns labels `(1, n)`, NaN where a pair was skipped.

    Every answer is in `answers-<number>.npz` of the run's folder at once. A resumed run asks the same
    questions and finds them there.

    Raises:
        Interrupted: the run was stopped while it waited.
    """
    dataset = of_questions(run.task.id, questions, observation_dim)
    length = questions.rewards.shape[-1]
    pairs = np.arange(len(dataset) // length).reshape(-1, 2) * length
    path = run.directory / f"answers-{number}.npz"
    session = Session(dataset, path, len(pairs), length, 0, "", asked=pairs)
    if session.current() is not None:
        _serve(run, session, dataset, number)
    return np.where(session.answers == SKIPPED, np.nan, session.answers)[None]


def of_questions(id: str, questions: Questions, observation_dim: int) -> Dataset:
    """Returns the segments of the first seed as a dataset, each an episode."""
    length = questions.rewards.shape[-1]
    rows = questions.segments[0].flatten(0, 2).cpu().numpy()
    observations, actions = np.split(rows, [observation_dim], 1)
    ends = np.arange(len(rows)) % length == length - 1
    rewards = questions.rewards[0].ravel()
    return Dataset.from_arrays(
        observations, actions, rewards, terminated=np.zeros_like(ends), truncated=ends, id=id
    )


def _serve(run: Run, session: Session, dataset: Dataset, number: int) -> None:
    server = Server(
        session,
        lambda: Pictures(run.task, dataset),
        "no command to run: training resumes by itself",
    )
    thread = threading.Thread(target=server.serve_forever, args=(PAUSE,), daemon=True)
    thread.start()
    print(f"Session {number + 1}: {len(session.pairs)} questions at {server.address}", flush=True)
    webbrowser.open(server.address)
    try:
        while session.current() is not None:
            if run.stopping:
                raise Interrupted
            time.sleep(PAUSE)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
