"""The optional copy of a run's numbers on Weights & Biases. The files in the run directory are the record."""

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corerl.config import Config
from corerl.errors import first_line
from corerl.runs import checkpoint, files
from corerl.runs.directory import config_hash, group_name, settings


class WandbLogger:
    """A mirror of metrics and scores on wandb.

    A failure of the mirror (no network, no account) is said once and never stops a run.
    """

    def __init__(self, cfg: Config, seeds: Sequence[int], directory: Path):
        self._run: Any = None
        cell = f"{cfg.task}/{cfg.algo.name}-{config_hash(cfg)}"
        try:
            import wandb

            directory.mkdir(parents=True, exist_ok=True)
            self._run = wandb.init(
                mode=cfg.wandb.mode,
                project=cfg.wandb.project,
                entity=cfg.wandb.entity,
                dir=directory,
                id=_id(directory),
                name=f"{cell}/{group_name(seeds)}",
                group=cell,
                config=settings(cfg) | {"seed": seeds[0] if len(seeds) == 1 else list(seeds)},
                resume="allow" if cfg.wandb.mode == "online" else None,
                settings=wandb.Settings(quiet=True, console="off"),
            )
        except Exception as error:
            self._give_up(error)

    def lacks_from(self) -> int | None:
        """Returns the first step that is not there, or None where there is no mirror. Offline none is."""
        return None if self._run is None else self._run.step

    def send(self, step: int, values: dict[str, float]) -> None:
        """Logs numbers by name at one step."""
        if self._run is None:
            return
        try:
            self._run.log(values, step=step)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        print(
            f"corerl: this run logs nothing to wandb ({first_line(error)})",
            file=sys.stderr,
        )
        self._run = None

    def close(self) -> None:
        """Waits until everything is sent or, offline, written."""
        if self._run is None:
            return
        try:
            self._run.finish()
        except Exception as error:
            self._give_up(error)
        self._run = None


def _id(directory: Path) -> str:
    """Returns the run's id, drawn when it begins and kept in its folder.

    A run that begins anew is another one: of the earlier one's steps wandb would drop every number.
    """
    kept = directory / "wandb-id.txt"
    if not (kept.exists() and checkpoint.exists(checkpoint.path_in(directory))):
        files.write_atomically(kept, secrets.token_hex(8).encode())
    return kept.read_text(encoding="utf-8")
