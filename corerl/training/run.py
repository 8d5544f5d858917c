"""One group of seeds from its first update to its last: logging, evaluation, checkpoints, resume.

A training function reads

    for step in run.steps(agent=agent, buffer=buffer):
        metrics = update(buffer.sample())
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)

and each of the three calls does its work only when its turn has come.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.config import Config, require
from corerl.data import download, tasks
from corerl.data.dataset import Dataset
from corerl.data.tasks import Task
from corerl.nn import compile
from corerl.nn.learner import Spec
from corerl.nn.unsaved_state import Watch
from corerl.runs import checkpoint, pending
from corerl.runs.checkpoint import save_checkpoint
from corerl.runs.directory import cell_directory, group_name
from corerl.runs.record import Record
from corerl.training import later, saved_state
from corerl.training.devices import pick_device, select
from corerl.training.evaluation import Evaluator
from corerl.training.stopping import Interrupted, stop_signals


class Run:
    """A group of seeds of one cell: its settings, its directory and its clock.

    Attributes:
        cfg: the run's settings. seeds: the S seeds. task: data and environment.
        device: where everything is computed. mode: `off`, `compile` or `graph`.
        record: what is written to `directory`. agent_spec: of `spec`, once the algorithm has asked for it.
    """

    def __init__(self, cfg: Config, seeds: Sequence[int], show: Callable[[str, dict], None]):
        self.cfg, self.seeds = cfg, list(seeds)
        self.task: Task = tasks.of(cfg)
        self.device = pick_device(cfg.device)
        self.mode = compile.resolve(cfg.compile, self.device, cfg.steps)
        select(self.device)
        self.directory = cell_directory(cfg) / group_name(seeds)
        self.record = Record(cfg, seeds, self.task, self.directory, show)
        self.mode.tell = self._tell
        self._evaluator: Evaluator | None = None
        self._state: dict[str, Any] = {}
        self._watch: Watch | None = None
        self._streams: dict[str, seeding.Stream] = {}
        self.agent_spec: Spec | None = None
        self._previous = 0
        self._stop = False
        self._saved = time.monotonic()
        self._replay_files = checkpoint.replay_files_of(self.checkpoint)

    @property
    def name(self) -> str:
        """`IQL d4rl/hopper-medium-v2 seeds-0-4`, for people."""
        return self.record.name

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's path. The previous one stands beside it until the run is done."""
        return checkpoint.path_in(self.directory)

    @property
    def _evaluates(self) -> bool:
        return self.cfg.eval.episodes > 0 and self.task.has_env

    # What an algorithm asks for.

    def dataset(self) -> Dataset:
        """Loads the task's data. If it is not on this machine yet, one process fetches it, others wait."""
        with nullcontext() if self.task.is_here else download.alone():
            return self.task.load()

    def rngs(self) -> list[torch.Generator]:
        """Returns a CPU generator per seed for initial weights."""
        return seeding.generators(self.seeds, "init")

    def normal(self, purpose: str, *shape: int, block: int | None = None) -> seeding.Stream:
        """Returns a stream of standard normal draws `(S, *shape)` (see `seeding.Stream`)."""
        return self._stream(purpose, seeding.normal(self.seeds, purpose, shape, self.device, block))

    def uniform(self, purpose: str, *shape: int, block: int | None = None) -> seeding.Stream:
        """Returns a stream of draws `(S, *shape)`, uniform on [0, 1)."""
        return self._stream(
            purpose, seeding.uniform(self.seeds, purpose, shape, self.device, block)
        )

    def _stream(self, purpose: str, stream: seeding.Stream) -> seeding.Stream:
        require(
            purpose not in self._streams,
            f'Two streams of random numbers are called "{purpose}", so they would be equal. Give one of them '
            "another name",
        )
        self._streams[purpose] = stream
        return stream

    def dropout(self, cfg: Any, rows: int, block: int | None = None) -> seeding.Stream | None:
        """Returns draws for the masks of `cfg`'s hidden layers at `rows` inputs. None without dropout."""
        if not cfg.dropout:
            return None
        return self.uniform("dropout", cfg.hidden_layers, rows, cfg.hidden_width, block=block)

    def spec(
        self,
        sizes: Any,
        normalizer: nn.Module | None = None,
        steps: int | None = None,
        facts: dict[str, Any] | None = None,
    ) -> Spec:
        """Returns the `Spec` from which this run's agent is built. Checkpoints keep it.

        Args:
            sizes: has the attributes `observation_dim` and `action_dim`: a buffer, or environments.
            normalizer: of observations.
            steps: the agent's updates where they are not all of the run's.
            facts: numbers and tensors of the data that the agent needs to act.
        """
        self.agent_spec = Spec(
            sizes.observation_dim,
            sizes.action_dim,
            self.rngs(),
            normalizer=nn.Identity() if normalizer is None else normalizer,
            device=self.device,
            mode=self.mode,
            steps=self.cfg.steps if steps is None else steps,
            discrete=getattr(sizes, "discrete", False),
            sources=getattr(sizes, "sources", 1),
            identities=self.seeds,
            facts=facts or {},
            make_env=self.task.make_env,
        )
        return self.agent_spec

    def steps(self, *, stride: int = 1, **state: Any) -> Iterator[int]:
        """Yields the numbers of the updates to make, counted from 1, the last of each call of `stride`.

        `state` names everything that a resumed run must find as it was: agent, buffer, noise streams.
        None stands for a part that these settings do without. Streams of `normal` and `uniform` that are
        in none of these parts are kept beside them. Where the directory holds a checkpoint, all of it is
        restored first.

        Raises:
            CorerlError: `steps` is not a multiple of `stride`, or no checkpoint can hold a part.
        """
        require(
            self.cfg.steps % stride == 0,
            f"steps={self.cfg.steps} must be a multiple of {stride}, the number of updates that "
            "corerl makes at a time",
        )
        self._state = {name: part for name, part in state.items() if part is not None}
        self._state |= saved_state.streams_beside(self._state, self._streams)
        done = self._begin()
        self._watch = Watch(self._state)
        with stop_signals(self._ask_to_stop):
            for step in range(done + stride, self.cfg.steps + 1, stride):
                yield step
                self._previous = step
                self.record.tick(step)
                if step == done + stride:  # hours before the first save
                    self._watch.tell(self.name, saved_state.tensors(self._state))
                if self._stop:
                    self._write_checkpoint(step)
                    raise Interrupted
        self.record.publish(self.cfg.steps, "done")
        checkpoint.previous(self.checkpoint).unlink(missing_ok=True)
        self._replay_files.prune()
        self.close()

    def log(self, step: int, metrics: dict[str, Tensor]) -> None:
        """Averages metrics `{name: (S,)}` on the device and writes them every `log_every` updates."""
        self.record.add(step, metrics)
        if self._crosses(step, self.cfg.log_every):
            self.record.write_metrics(step)

    def evaluate(
        self,
        step: int,
        act: Callable[[Tensor], Tensor],
        also: dict[str, Callable[[Tensor], Tensor]] | None = None,
    ) -> None:
        """Plays the task's environment every `eval.every` updates and at the end.

        `act` makes the scores; what the policies in `also` get goes to the metrics, under their names.
        With `eval.later` the policies are kept instead, for `corerl evaluate RUN --pending`.
        """
        if not self._evaluates or not self._crosses(step, self.cfg.eval.every):
            return
        self.record.find_divergence(step)
        if self._evaluator is None:
            later.keep(self, step, act, also or {}, self._state)
            return
        started = time.monotonic()
        self.record.status["waiting_for"] = "evaluating"
        self.record.publish(step, "running")
        episodes = self._evaluator(act)
        others = {name: self._evaluator(other).returns for name, other in (also or {}).items()}
        self.record.status["waiting_for"] = ""
        self.record.pause_clock(time.monotonic() - started)
        self.record.write_scores(step, episodes)
        for lines in self.record.lines_beside_scores(step, episodes, others):
            self.record.write_lines(step, lines)
        self.record.publish(step, "running")

    def save(self, step: int) -> None:
        """Writes a checkpoint every `save_every` updates, if `save_minutes` have passed, and at the end."""
        if not self._crosses(step, self.cfg.save_every):
            return
        waited = time.monotonic() - self._saved
        if step == self.cfg.steps or waited >= 60 * self.cfg.save_minutes:
            self._write_checkpoint(step)

    @property
    def stopping(self) -> bool:
        """Whether a signal has asked the run to stop, for what waits within a step."""
        return self._stop

    # Beginning, going on, ending.

    def _ask_to_stop(self) -> None:
        self._stop = True

    def _begin(self) -> int:
        """Restores a checkpoint where there is one and returns the updates already made."""
        if self._evaluates and self.cfg.eval.later:
            later.check(self.cfg.algo.name)
        elif self._evaluates:
            self._evaluator = Evaluator(
                self.task.make_env, self.seeds, self.cfg.eval.episodes, self.device
            )
        path = self.checkpoint
        if checkpoint.exists(path):
            saved = checkpoint.load_latest(path, self._replay_files)
            with saved_state.readable(path, self.device):
                step = saved["loop"]["step"]
                saved_state.restore(self._state, saved["state"])
                self.record.load_state_dict(saved["loop"], step)
            self._previous = step
            pending.discard(self.directory, after=self._previous)
            saved_state.end_cut_episodes(self._state.values())
            self.record.catch_up()
            if self._previous < self.cfg.steps:
                self.record.go_on(self._previous)
        else:
            self.record.begin_anew(self.device)
            pending.discard(self.directory)
        self.record.status["compile"] = self.mode.reported()
        self.record.start_clock(self._previous)
        return self._previous

    def _write_checkpoint(self, step: int) -> None:
        state = {name: part.state_dict() for name, part in self._state.items()}
        saved = {"loop": {"step": step} | self.record.state_dict(), "state": state}
        if self.agent_spec is not None:
            saved["spec"] = self.agent_spec.saved()
        save_checkpoint(self.checkpoint, saved, self._replay_files)
        self._saved = time.monotonic()
        if self._watch is not None:
            self._watch.tell(self.name, checkpoint.tensors_of(state).values())

    def _tell(self, waiting_for: str) -> None:
        """Shows what updates wait for, and how updates run in fact."""
        self.record.status["compile"] = self.mode.reported()
        self.record.wait_for(waiting_for)

    def close(self) -> None:
        """Closes environments and mirrors, and lets go of what was trained."""
        for part in self._state.values():
            if hasattr(part, "close"):
                part.close()
        # The run is in a cycle, and its replay's memory is the next run's.
        self._state, self._watch = {}, None
        self._streams.clear()
        if self._evaluator is not None:
            self._evaluator.close()
        self.record.close()

    def fail(self, state: str, message: str) -> None:
        """Marks the run as `failed` or `interrupted` in its status."""
        self.record.end(self._previous, state, message)
        self.close()

    def _crosses(self, step: int, every: int) -> bool:
        return step == self.cfg.steps or step // every > self._previous // every
