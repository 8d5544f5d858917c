"""One group of seeds from its first update to its last: logging, evaluation, checkpoints, resume.

A training function reads

    for step in run.steps(agent=agent, buffer=buffer):
        metrics = update(buffer.sample())
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)

and each of the three calls does its work only when its turn has come.
"""

import csv
import io
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corerl import compile, runs, streams
from corerl.config import Config, require
from corerl.data import download
from corerl.data.dataset import Dataset
from corerl.errors import CorerlError
from corerl.evaluate import Evaluator
from corerl.mirror import Mirror
from corerl.tasks import READERS, Task, resolve

SCORE_COLUMNS = (
    "task,algorithm,config,seed,step,return,score,episodes,length,return_std"  # one row per seed
)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the run was saved and can be resumed."""


class Run:
    """A group of seeds of one cell: its settings, its directory and its clock.

    Attributes:
        cfg: the run's settings. seeds: the S seeds. task: data and environment.
        device: where everything is computed. mode: `off`, `compile` or `graph`.
    """

    def __init__(self, cfg: Config, seeds: Sequence[int], show: Callable[[str, dict], None]):
        self.cfg, self.seeds, self._show = cfg, list(seeds), show
        self.task: Task = resolve(cfg.task)
        self.device = pick_device(cfg.device)
        self.mode = compile.resolve(cfg.compile, self.device, cfg.steps)
        self.directory = runs.cell_directory(cfg) / runs.group_name(seeds)
        self.label = cfg.label or cfg.algo.label
        self._hash = runs.config_hash(cfg)
        self._evaluator: Evaluator | None = None
        self._mirror = Mirror(cfg, self.seeds, self.directory)
        self._state: dict[str, Any] = {}
        self._sums: dict[str, Tensor] = {}
        self._count = 0
        self._diverged: dict[int, int] = {}
        self._status: dict[str, Any] = {}
        self._clock = (0, 0.0, 0.0)
        self._published = 0.0
        self._previous = 0
        self._stop = False

    # What an algorithm asks for.

    def dataset(self) -> Dataset:
        """The task's data. Where it is not on this machine yet, one process brings it, others wait."""
        reader = READERS.get(self.task.collection)
        missing = reader is not None and reader.find(self.task.name) is None
        with download.alone() if missing else nullcontext():
            return self.task.load()

    def rngs(self) -> list[torch.Generator]:
        """A CPU generator per seed for initial weights."""
        return streams.generators(self.seeds, "init")

    def steps(self, *, stride: int = 1, **state: Any) -> Iterator[int]:
        """The numbers of the updates to make, counted from 1, the last of each call of `stride`.

        `state` names everything that a resumed run must find as it was: agent, buffer, noise streams.
        None stands for a part that these settings do without. Where the directory holds a checkpoint,
        all of it is restored first.

        Raises:
            CorerlError: `steps` is not a multiple of `stride`.
        """
        require(
            self.cfg.steps % stride == 0,
            f"steps={self.cfg.steps} must be a multiple of {stride}, the updates of one call",
        )
        self._state = {name: part for name, part in state.items() if part is not None}
        done = self._begin()
        with _stop_signals(self):
            for step in range(done + stride, self.cfg.steps + 1, stride):
                yield step
                self._tick(step)
                if self._stop:
                    self._write_checkpoint(step)
                    raise Interrupted
        self._finish()

    def log(self, step: int, metrics: dict[str, Tensor]) -> None:
        """Averages metrics `{name: (S,)}` on the device and writes them every `log_every` updates."""
        if not self._sums:
            self._sums = {name: torch.zeros_like(value) for name, value in metrics.items()}
        torch._foreach_add_(list(self._sums.values()), list(metrics.values()))
        self._count += 1
        if self._crosses(step, self.cfg.log_every):
            self._write_metrics(step)

    def evaluate(
        self,
        step: int,
        act: Callable[[Tensor], Tensor],
        also: dict[str, Callable[[Tensor], Tensor]] | None = None,
    ) -> None:
        """Plays the task's environment every `eval.every` updates and at the end.

        `act` makes the scores; what the policies in `also` get goes to the metrics, under their names.
        """
        if self._evaluator is None or not self._crosses(step, self.cfg.eval.every):
            return
        self._find_divergence(step)
        started = time.monotonic()
        returns, lengths = self._evaluator(act)
        others = {name: self._evaluator(other).returns for name, other in (also or {}).items()}
        self._pause_clock(time.monotonic() - started)
        self._write_scores(step, returns, lengths)
        if others:
            self._write_others(step, others)

    def save(self, step: int) -> None:
        """Writes a checkpoint every `save_every` updates and at the end."""
        if self._crosses(step, self.cfg.save_every):
            self._write_checkpoint(step)

    # Beginning, going on, ending.

    def _begin(self) -> int:
        """Restores a checkpoint where there is one; returns the updates already made."""
        if self.cfg.eval.episodes:
            self._evaluator = Evaluator(
                self.task.make_env, self.seeds, self.cfg.eval.episodes, self.device
            )
        done = 0
        checkpoint = self.directory / "checkpoint.safetensors"
        if checkpoint.exists():
            done = self._restore(runs.load_checkpoint(checkpoint), checkpoint)
        else:
            runs.write_json(self.directory / "env.json", runs.environment())
            for name in ("metrics.jsonl", "scores.csv"):
                (self.directory / name).unlink(missing_ok=True)
        (self.directory / "error.txt").unlink(missing_ok=True)
        self._previous = done
        self._clock = (done, time.monotonic(), 0.0)
        self._publish(done, "running")
        return done

    def _restore(self, saved: dict[str, Any], checkpoint: Path) -> int:
        step = saved["loop"]["step"]
        try:
            for name, part in self._state.items():
                part.load_state_dict(saved["state"][name])
        except (KeyError, ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise CorerlError(
                f"{checkpoint} was saved by other code than this ({reason}): finish it with that code, "
                f"or delete {self.directory} to start over."
            ) from error
        sums = saved["loop"]["sums"]
        self._sums = {name: value.to(self.device) for name, value in sums.items()}
        self._count = saved["loop"]["count"]
        self._diverged = saved["loop"]["diverged"]
        self._status |= saved["loop"]["status"]
        runs.truncate_after(
            self.directory / "metrics.jsonl", step, lambda line: json.loads(line)["step"]
        )
        runs.truncate_after(self.directory / "scores.csv", step, _score_step)
        return step

    def _write_checkpoint(self, step: int) -> None:
        keep = ("score", "return", "evaluated")
        loop = {
            "step": step,
            "sums": self._sums,
            "count": self._count,
            "diverged": self._diverged,
            "status": {name: self._status.get(name) for name in keep},
        }
        state = {name: part.state_dict() for name, part in self._state.items()}
        path = self.directory / "checkpoint.safetensors"
        runs.save_checkpoint(path, {"loop": loop, "state": state})

    def _tick(self, step: int) -> None:
        self._previous = step
        if time.monotonic() - self._published > 1.0:
            self._publish(step, "running")

    def _finish(self) -> None:
        self._publish(self.cfg.steps, "done")
        self.close()

    def close(self) -> None:
        """Closes environments and the wandb mirror."""
        if self._evaluator is not None:
            self._evaluator.close()
        self._mirror.close()

    def fail(self, state: str, message: str) -> None:
        """Marks the run as `failed` or `interrupted` in its status."""
        self._publish(self._previous, state, message)
        self.close()

    def _crosses(self, step: int, every: int) -> bool:
        return step == self.cfg.steps or step // every > self._previous // every

    # Writing.

    def _write_metrics(self, step: int) -> None:
        means = {name: (value / self._count).tolist() for name, value in self._sums.items()}
        torch._foreach_zero_(list(self._sums.values()))
        self._count = 0
        lines = [
            {"step": step, "seed": seed} | {name: values[i] for name, values in means.items()}
            for i, seed in enumerate(self.seeds)
        ]
        runs.append_lines(self.directory / "metrics.jsonl", map(json.dumps, lines))
        self._mirror.log(step, lines)
        self._note_divergence(step, np.array(list(means.values())))

    def _find_divergence(self, step: int) -> None:
        if self._sums and self._count:
            self._note_divergence(step, torch.stack(list(self._sums.values())).cpu().numpy())

    def _note_divergence(self, step: int, values: np.ndarray) -> None:
        for i in np.flatnonzero(~np.isfinite(values).all(0)):
            seed = self.seeds[i]
            if seed in self._diverged:
                continue
            self._diverged[seed] = step
            print(
                f"corerl: {self.label} on {self.task.id}: seed {seed} diverged (NaN or overflow) by "
                f"step {step}; the other seeds go on",
                file=sys.stderr,
            )

    def _write_scores(self, step: int, returns: np.ndarray, lengths: np.ndarray) -> None:
        """A row for every seed that has not diverged."""
        path = self.directory / "scores.csv"
        going = [i for i, seed in enumerate(self.seeds) if seed not in self._diverged]
        means = returns.mean(1)
        scores = self.task.normalize(means)
        rows = [
            [
                *(self.task.id, self.label, self._hash, self.seeds[i], step),
                *(repr(float(means[i])), "" if scores is None else repr(float(scores[i]))),
                *(returns.shape[1], float(lengths[i].mean()), repr(float(returns[i].std()))),
            ]
            for i in going
        ]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        header = [] if path.exists() and path.stat().st_size else [SCORE_COLUMNS]
        runs.append_lines(path, header + text.getvalue().splitlines())
        means, scores = (None if x is None or not going else x[going] for x in (means, scores))
        self._status["return"] = None if means is None else float(means.mean())
        self._status["score"] = None if scores is None else float(scores.mean())
        self._status["evaluated"] = step
        if going:
            self._mirror.log_scores(step, [self.seeds[i] for i in going], means, scores)
        self._publish(step, "running")

    def _write_others(self, step: int, returns: dict[str, np.ndarray]) -> None:
        lines = [{"step": step, "seed": seed} for seed in self.seeds]
        for name, values in returns.items():
            means = values.mean(1)
            scores = self.task.normalize(means)
            for i, line in enumerate(lines):
                line[f"return {name}"] = float(means[i])
                line[f"score {name}"] = None if scores is None else float(scores[i])
        runs.append_lines(self.directory / "metrics.jsonl", map(json.dumps, lines))
        self._mirror.log(step, lines)

    def _publish(self, step: int, state: str, message: str = "") -> None:
        """Writes `status.json` and shows it."""
        first, started, paused = self._clock
        elapsed = time.monotonic() - started - paused
        self._status |= {
            "state": state,
            "step": step,
            "steps": self.cfg.steps,
            "seeds": self.seeds,
            "updates_per_s": (step - first) / elapsed if step > first and elapsed > 0 else 0.0,
            "message": message,
            "diverged": {str(seed): at for seed, at in self._diverged.items()},
            "updated": time.time(),
        }
        self._published = time.monotonic()
        runs.write_json(self.directory / "status.json", self._status)
        self._show(self.name, self._status)

    @property
    def name(self) -> str:
        """`IQL d4rl/hopper-medium-v2 seeds-0-4`, for people."""
        return f"{self.label} {self.task.id} {self.directory.name}"

    def _pause_clock(self, seconds: float) -> None:
        first, started, paused = self._clock
        self._clock = (first, started, paused + seconds)


def _score_step(line: str) -> int | None:
    fields = next(csv.reader([line]))
    return None if fields[0] == "task" else int(fields[4])


def pick_device(name: str) -> torch.device:
    """The device that `device=` names; `auto` takes a GPU where there is one.

    Raises:
        CorerlError: a GPU is asked for and torch sees none, or the name is not a device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise CorerlError(f"device={name} is not auto, cpu, cuda or cuda:N.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CorerlError(
            f"device={name} was asked for but torch {torch.__version__} sees no GPU: use device=cpu, "
            "or install a CUDA build of torch and check nvidia-smi."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CorerlError(
            f"device={name} was asked for and torch sees {torch.cuda.device_count()} GPUs, from cuda:0."
        )
    return device


class _stop_signals:
    """Turns the first SIGINT or SIGTERM into a stop at the next step boundary; a second one kills."""

    def __init__(self, run: Run):
        self._run = run

    def __enter__(self) -> None:
        self._old = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._old[number] = signal.signal(number, self._stop)
            except ValueError:  # not the main thread: the caller handles signals
                return

    def _stop(self, number, frame) -> None:
        self._run._stop = True
        signal.signal(number, self._old[number])

    def __exit__(self, *_) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
