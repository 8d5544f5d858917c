"""Environments that a killed run finds as they were."""

from typing import Any

import gymnasium
import numpy as np
import torch


class Restorable(gymnasium.Env):
    """An environment whose whole state is the attributes named in `kept` and its generator."""

    kept: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs, on an environment that was reset once, for the very next step."""
        state = {name: getattr(self, name) for name in self.kept}
        arrays = {
            n: torch.from_numpy(x.copy()) for n, x in state.items() if isinstance(x, np.ndarray)
        }
        return state | arrays | {"generator": self.np_random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.kept:
            value = state[name]
            setattr(self, name, value.numpy().copy() if torch.is_tensor(value) else value)
        self.np_random.bit_generator.state = state["generator"]
