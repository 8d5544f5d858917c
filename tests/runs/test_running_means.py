"""Where the sums of metrics are, and what becomes of those that a checkpoint brought."""

import torch
from small import config

from corerl.training.run import Run


def test_a_resumed_runs_sums_are_all_where_its_metrics_are(tmp_path):
    """The phase that gave `before` has ended; `meta` stands for a GPU."""
    run = Run(config(tmp_path), [0], lambda *_: None)
    saved = {"sums": {"before": torch.ones(1)}, "counts": {"before": 1}}
    run.record.load_state_dict(run.record.state_dict() | saved, 1)
    run.record.add(2, {"now": torch.ones(1, device="meta")})
    assert [total.device.type for total in run.record.means.sums.values()] == ["meta", "meta"]
