"""TD3+BC as NeoRL-2's benchmark has it (Gao et al. 2025, arXiv:2503.19267).

`td3_bc.py` with critics that see raw states, and an actor that moves earlier.

    corerl train algo=td3_bc_neorl2 task=neorl2/DMSD seeds=[7,42,210]

The reference is the benchmark's code, offlinerl 0.0.2. It differs from TD3+BC in three ways:
 1. Only the policy normalises states, so critics see them as they are.
 2. Of each `policy_delay` critic updates the first brings the actor's and the targets'.
 3. The actor has one hidden layer more than the critics (`actor_layers`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corerl.algos import td3_bc
from corerl.buffers.replay import Batch
from corerl.config import at_least
from corerl.training.run import Run


@dataclass
class Config(td3_bc.Config):
    name: str = "td3_bc_neorl2"

    actor_layers: int | None = at_least(1, 3)  # hidden layers of the actor (null: hidden_layers)


class NeoRL2TD3BC(td3_bc.TD3BC):
    """NeoRL-2's TD3+BC agents of S seeds, trained together."""

    critic_normalizer = nn.Identity()  # critics see raw states

    def _policy(self, actor: nn.Module, observations: Tensor) -> Tensor:
        return torch.tanh(actor(self.normalizer(observations)))

    def update(self, batches: list[Batch], noises: list[Tensor]) -> dict[str, Tensor]:
        """Takes one critic step per batch. With the first one the actor's and the targets'."""
        first, *others = zip(batches, noises, strict=True)
        metrics = self._critic_step(*first)
        actor_metrics = self._improve(first[0])
        for batch, noise in others:
            metrics = self._critic_step(batch, noise)
        return metrics | actor_metrics


build = NeoRL2TD3BC


def train(cfg: Config, run: Run) -> None:
    td3_bc.learn(NeoRL2TD3BC, cfg, run, raw=True)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
