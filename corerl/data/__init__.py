"""Readers of offline datasets: every format becomes one `corerl.data.dataset.Dataset`."""
