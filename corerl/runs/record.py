"""The files of one group of seeds: metrics, scores, episode returns and its status."""

import csv
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corerl.config import Config
from corerl.data.tasks import Task
from corerl.errors import CorerlError
from corerl.runs import code, files, provenance
from corerl.runs.checkpoint import exists, path_in
from corerl.runs.directory import config_hash, read_status
from corerl.runs.log import Log
from corerl.runs.running_means import Means, not_finite
from corerl.runs.score_rows import KEPT, SCORE_COLUMNS, STEP_OF, Episodes, goal_lines
from corerl.runs.trackers import Mirrors


def _status_so_far(directory: Path) -> dict[str, Any]:
    """Returns the `status.json` of the attempts before this one, or empty where there is none."""
    try:
        return read_status(directory)
    except CorerlError:  # it is damaged, and will be written anew
        return {}


class Record:
    """The files `metrics.jsonl`, `scores.csv`, `returns.jsonl` and `status.json` of a run directory.

    Attributes:
        status: what `status.json` holds; its `seconds` are wall-clock from the first update on,
            evaluations included, of all attempts, also for what a killed one lost; its `updates_per_s`
            count from the first metrics, and anew where new ones take the place of others: random steps
            and steps that learn take unequal time; `began_at` is the step that this attempt goes on from.
        diverged: the step at which a seed was found to be NaN.
        means: the running means of what is not written yet.
        facts: what `env.json` says of this run beside versions and hardware.
    """

    def __init__(
        self,
        cfg: Config,
        seeds: Sequence[int],
        task: Task,
        directory: Path,
        show: Callable[[str, dict], None],
    ):
        self.cfg, self.seeds, self.task, self.directory = cfg, list(seeds), task, directory
        self.label = cfg.label or cfg.algo.label
        self.status: dict[str, Any] = {}
        self.diverged: dict[int, int] = {}
        self.facts: dict[str, Any] = {"precision": cfg.precision}
        self._show = show
        self._hash = config_hash(cfg)
        self._logs = {name: Log(directory / name) for name in STEP_OF}
        self._mirrors = Mirrors(cfg, self.seeds, directory)
        self.means = Means(len(self.seeds))
        self._clock = (0, 0.0, 0.0)
        self._latest: set[str] = set()
        self._seen: set[str] = set()
        self._began: float | None = None
        self._before = _status_so_far(directory)
        self._earlier = self._before.get("seconds")
        self._published = 0.0
        self._waiting_since: float | None = None

    @property
    def name(self) -> str:
        """`IQL d4rl/hopper-medium-v2 seeds-0-4`, for people."""
        return f"{self.label} {self.task.id} {self.directory.name}"

    # Beginning and going on.

    def begin_anew(self, device: torch.device | str = "cpu") -> None:
        """Clears what an earlier attempt left that no checkpoint covers. The run is on this `device`."""
        files.make_directory(self.directory)
        own = self.facts | {"code": code.digest(self.cfg.algo.name)}
        files.write_json(self.directory / "env.json", provenance.environment(device) | own)
        for log in self._logs.values():
            log.begin_anew()
        self._earlier = 0.0

    def go_on(self, step: int) -> None:
        """Says so where the updates after `step` have other code than those before it."""
        name = self.cfg.algo.name
        if not code.goes_on(self.directory, name):
            return
        many = len(self.seeds) > 1
        print(
            f"corerl: seed{'s' if many else ''} {', '.join(map(str, self.seeds))} in "
            f"{self.directory.parent} started with different code of {name}.py. "
            f"{'They resume' if many else 'It resumes'} at step {step} with today's code. To "
            f"start over, delete {self.directory}.",
            file=sys.stderr,
        )

    def start_clock(self, done: int) -> None:
        """Starts counting updates per second. `done` were made before."""
        (self.directory / "error.txt").unlink(missing_ok=True)
        self._clock = (done, time.monotonic(), 0.0)
        self._latest, self._seen = set(), set()
        self._began = time.monotonic()
        self.status["began_at"] = done
        self.publish(done, "running")

    def pause_clock(self, seconds: float) -> None:
        """Leaves this time (an evaluation's) out of the updates per second."""
        first, started, paused = self._clock
        self._clock = (first, started, paused + seconds)

    @property
    def seconds(self) -> float | None:
        """Wall-clock of this attempt and of those that it resumes, or None where that is not known."""
        if self._began is None or self._earlier is None:
            return self._earlier
        return self._earlier + time.monotonic() - self._began

    def state_dict(self) -> dict[str, Any]:
        logs = {name: log.state_dict() for name, log in self._logs.items()}
        return self.means.state_dict() | {
            "diverged": self.diverged,
            "status": {name: self.status.get(name) for name in KEPT},
            # Pending evaluations will be added to the logs, so that nothing vouches for them.
            **({} if self.cfg.eval.later else {"logs": logs}),
        }

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Resumes as after `step`. What was written later is cut, since it will be computed again."""
        self.means.load_state_dict(state)
        self.diverged = state["diverged"]
        self.status |= state["status"]
        for name, log in self._logs.items():
            if "logs" in state:
                log.load_state_dict(state["logs"][name])
            else:  # a checkpoint of format 1, or pending evaluations may have been played since
                log.cut_after(step, STEP_OF[name])
        if "logs" not in state:
            self._keep_played(step)

    def _keep_played(self, step: int) -> None:
        """Adopts the scores that pending evaluations got, and seeds whose environment crashed there."""
        if 0 < (self._before.get("evaluated") or 0) <= step:
            self.status |= {name: self._before.get(name) for name in KEPT}
        known = {int(seed): at for seed, at in self._before.get("diverged", {}).items()}
        self.diverged |= {seed: at for seed, at in known.items() if at <= step}

    # Metrics.

    def add(self, step: int, metrics: dict[str, Tensor]) -> None:
        """Adds `{name: (S,)}` to the running means and raises as `Means.add`."""
        self._note_names(step, set(metrics))
        self.means.add(metrics)

    def _note_names(self, step: int, names: set[str]) -> None:
        """Starts the clock again at the first metrics, and where new names take the place of others.

        A metric that not every update gives does neither.
        """
        if names - self._seen and (not self._seen or self._latest - names):
            self._clock = (step, time.monotonic(), 0.0)
        self._latest, self._seen = names, self._seen | names

    def write_metrics(self, step: int) -> None:
        """Writes a line per seed: of each metric that was given since the last one, its mean."""
        self.find_divergence(step)
        means = self.means.take()
        lines = [
            {"step": step, "seed": seed} | {name: values[i] for name, values in means.items()}
            for i, seed in enumerate(self.seeds)
        ]
        self.write_lines(step, lines)

    def write_lines(self, step: int, lines: list[dict[str, Any]]) -> None:
        """Writes lines of metrics."""
        self._logs["metrics.jsonl"].append(map(json.dumps, lines))
        self._mirrors.send(step, lines)

    def find_divergence(self, step: int) -> None:
        """Looks for NaN and overflow in the metrics that are not written yet."""
        names, values = self.means.on_host()
        for i in np.flatnonzero(~np.isfinite(values).all(0)):
            seed = self.seeds[i]
            if seed in self.diverged:
                continue
            self.diverged[seed] = step
            print(
                f"corerl: {self.label} on {self.task.id} with seed {seed} diverged "
                f"({not_finite(names, values[:, i])}) by step {step}. The other seeds continue",
                file=sys.stderr,
            )

    # Scores.

    def write_scores(self, step: int, episodes: Episodes) -> None:
        """Writes a row for every seed that has not diverged, and the return of each of its episodes."""
        for i in np.flatnonzero(np.isnan(episodes.returns).any(1)):  # its environment crashed
            self.diverged.setdefault(self.seeds[i], step)
        going = [i for i, seed in enumerate(self.seeds) if seed not in self.diverged]
        means = episodes.returns.mean(1)
        solved = episodes.successes.mean(1)
        scores = 100 * solved if self.task.scored_by_success else self.task.normalize(means)
        rows = [self._score_row(step, i, episodes, means, scores) for i in going]
        log = self._logs["scores.csv"]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        log.append(([SCORE_COLUMNS] if log.empty else []) + text.getvalue().splitlines())
        lines = [
            {"step": step, "seed": self.seeds[i], "returns": episodes.returns[i].tolist()}
            for i in going
        ]
        self._logs["returns.jsonl"].append(map(json.dumps, lines))
        known = {"return": means, "score": scores}
        shown = [
            {"seed": self.seeds[i]}
            | {k: None if x is None else float(x[i]) for k, x in known.items()}
            for i in going
        ]
        self._mirrors.send(step, shown)
        means, scores = (None if x is None or not going else x[going] for x in (means, scores))
        self.status["return"] = None if means is None else float(means.mean())
        self.status["score"] = None if scores is None else float(scores.mean())
        self.status["evaluated"] = step

    def cut_scores(self, step: int) -> None:
        """Drops the rows and returns of evaluations from `step` on, which are to be written again."""
        for name in ("scores.csv", "returns.jsonl"):
            self._logs[name].cut_after(step - 1, STEP_OF[name])

    def _score_row(self, step: int, i: int, episodes: Episodes, means, scores) -> list:
        returns, lengths, successes = (part[i] for part in episodes)
        solved = successes.mean()
        return [
            *(self.task.id, self.label, self._hash, self.seeds[i], step),
            *(repr(float(means[i])), "" if scores is None else repr(float(scores[i]))),
            *(len(returns), float(lengths.mean()), repr(float(returns.std()))),
            "" if np.isnan(solved) else repr(float(solved)),
        ]

    def lines_beside_scores(
        self, step: int, episodes: Episodes, others: dict[str, np.ndarray]
    ) -> Iterator[list[dict[str, Any]]]:
        """Yields what an evaluation adds to the metrics: a line per seed of its goals, then of `others`.

        These are returns `(S, episodes)` of further policies by name.
        """
        going = [i for i, seed in enumerate(self.seeds) if seed not in self.diverged]
        if self.task.goal_tasks and going:
            yield goal_lines(step, self.seeds, self.task.goal_tasks, episodes.successes, going)
        if others:
            yield self._lines_of_others(step, others)

    def _lines_of_others(self, step: int, returns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        lines = [{"step": step, "seed": seed} for seed in self.seeds]
        for name, values in returns.items():
            means = values.mean(1)
            scores = self.task.normalize(means)
            for i, line in enumerate(lines):
                line[f"return {name}"] = float(means[i])
                line[f"score {name}"] = None if scores is None else float(scores[i])
        return lines

    # Status.

    def publish(self, step: int, state: str, message: str = "") -> None:
        """Writes `status.json` and shows it."""
        self._write_status(self._status_at(step, state, message))

    def end(self, step: int, state: str, message: str) -> None:
        """Publishes how a run ended that is not done.

        One that could not even go on from its checkpoint is as far as the attempt before it.
        """
        ended = self._status_at(step, state, message)
        if self._began is None and exists(path_in(self.directory)):
            reported = {name: ended[name] for name in ("state", "message", "updated")}
            ended = ended | self._before | reported
        self._write_status(ended)

    def _status_at(self, step: int, state: str, message: str) -> dict[str, Any]:
        first, started, paused = self._clock
        elapsed = time.monotonic() - started - paused
        return self.status | {
            "state": state,
            "step": step,
            "steps": self.cfg.steps,
            "seeds": self.seeds,
            "learning": bool(self._seen),
            "updates_per_s": (step - first) / elapsed if step > first and elapsed > 0 else 0.0,
            "seconds": self.seconds,
            "message": message,
            "diverged": {str(seed): at for seed, at in self.diverged.items()},
            "updated": time.time(),
        }

    def _write_status(self, status: dict[str, Any]) -> None:
        self.status, self._published = status, time.monotonic()
        files.write_json(self.directory / "status.json", status)
        self._show(self.name, status)

    def wait_for(self, text: str) -> None:
        """Shows what updates wait for, or "" when that is over. The time between does not count."""
        now = time.monotonic()
        if self._waiting_since is not None:
            self.pause_clock(now - self._waiting_since)
        self._waiting_since = now if text else None
        self.status["waiting_for"] = text
        self.publish(self.status["step"], "running")

    def tick(self, step: int) -> None:
        """Publishes once a second."""
        if time.monotonic() - self._published > 1.0:
            self.publish(step, "running")

    def catch_up(self) -> None:
        """Sends to the mirrors what the logs of a resumed run hold and they lack."""
        self._mirrors.catch_up()

    def close(self) -> None:
        """Ends the mirrors."""
        self._mirrors.close()
