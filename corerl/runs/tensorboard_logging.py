"""The optional copy of a run's numbers as TensorBoard's event files. The other files are the record."""

import sys
from pathlib import Path
from typing import Any

from corerl.errors import first_line


class TensorBoardLogger:
    """Writes event files to `directory/tensorboard`, for `tensorboard --logdir runs`.

    What fails here is said once and never stops a run. Of a run that goes on, TensorBoard forgets what came
    after the checkpoint.
    """

    def __init__(self, directory: Path):
        self._on, self._directory, self._writer = True, directory / "tensorboard", None

    def lacks_from(self) -> int | None:
        """Returns 0 where there are no event files yet, otherwise None: they hold what was sent."""
        return 0 if self._on and not self._directory.exists() else None

    def send(self, step: int, values: dict[str, float]) -> None:
        """Writes numbers by name at one step."""
        if not self._on:
            return
        try:
            if self._writer is None:
                self._writer = self._opened(step)
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        except Exception as error:
            self._give_up(error)

    def _opened(self, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self._directory, purge_step=step)

    def _give_up(self, error: Exception) -> None:
        missing = (
            '. Install it with: pip install "corerl[tensorboard]"'
            if isinstance(error, ImportError)
            else ""
        )
        print(
            f"corerl: this run writes no TensorBoard files ({first_line(error)}){missing}",
            file=sys.stderr,
        )
        self._on = False

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except Exception as error:
            self._give_up(error)
        self._writer = None
