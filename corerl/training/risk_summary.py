"""The last lines of a risk-sensitive run: what was optimised, and static CVaR.

Reports have the same numbers with intervals (corerl/report/risk.py).
"""

import json

import numpy as np

from corerl.risk import measures
from corerl.training.run import Run


def print_summary(run: Run) -> None:
    """Prints a line per seed about the episodes that it played last, or nothing where none were played."""
    file = run.record.directory / "returns.jsonl"
    if not file.exists():
        return
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if line["step"] == lines[-1]["step"]:  # the last evaluation's
            played = describe(np.asarray(line["returns"]), own_tau(run.cfg.algo))
            print(
                f"{run.record.label} on {run.task.id}, seed {line['seed']}: optimised "
                f"{objective(run.cfg.algo)}, {played}",
                flush=True,
            )


def objective(cfg) -> str:
    """Names what an algorithm's settings say is optimised: `static, tau 0.25`, `mean`."""
    tau = own_tau(cfg)
    return cfg.objective if tau is None else f"{cfg.objective}, tau {tau:g}"


def own_tau(cfg) -> float | None:
    """Returns the tail that an algorithm's settings say counts, or None where they name none.

    Without an objective, a setting called tau may be anything.
    """
    return None if cfg.objective == "mean" else cfg.tau


def describe(returns: np.ndarray, tau: float | None = None) -> str:
    """Summarises returns (n,), undiscounted: `100 episodes: mean 1.2, static CVaR 0.3 (0.25), ...`.

    The levels are those of reports and `tau`, the one that was optimised.
    """
    taus = sorted({*measures.TAUS, *([] if tau is None else [tau])})
    levels = ", ".join(f"{measures.cvar(returns, tau):.4g} ({tau:g})" for tau in taus)
    return f"{len(returns):,} episodes: mean {returns.mean():.4g}, static CVaR {levels}"
