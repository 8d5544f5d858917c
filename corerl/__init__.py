"""corerl: research implementations of deep reinforcement learning, and the statistics to trust them.

In a notebook: `corerl.Dataset.from_arrays`, `corerl.train`, `corerl.load`.
"""

import importlib

__version__ = "0.1.0"

OFFERED = {
    "Dataset": "corerl.data.dataset",
    "load": "corerl.policies.load",
    "train": "corerl.launch.python_api",
}
"""What a notebook asks for, imported when it does: `import corerl` alone loads nothing."""


def __getattr__(name: str):
    if name not in OFFERED:
        raise AttributeError(f"module 'corerl' has no attribute {name!r}")
    return getattr(importlib.import_module(OFFERED[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *OFFERED]
