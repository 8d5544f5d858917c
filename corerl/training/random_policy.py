"""Policies to evaluate that draw random numbers, each seed its own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from corerl import seeding
from corerl.nn.learner import Stateful


class RandomPolicy(Stateful):
    """Base of policies that draw: one generator per seed, kept in the checkpoint.

    A round of episodes takes one number of each generator, however long it is: it lasts as long as any
    seed's longest episode.

    Args:
        seeds: the S seeds. purpose: of their generators (`seeding`).
    """

    def __init__(self, seeds: Sequence[int], purpose: str = "eval actions"):
        self._generators = seeding.generators(seeds, purpose)
        self._of_round: list[torch.Generator] = []

    def begin(self, seeds: int, episodes: int) -> None:
        """Begins a round of episodes."""
        keys = [torch.randint(2**62, (), generator=g).item() for g in self._generators]
        self._of_round = [torch.Generator().manual_seed(key) for key in keys]

    def draws(self, draw: Callable[..., Tensor], observations: Tensor, *shape: int) -> Tensor:
        """Returns draws `(S, n, *shape)` for n episodes per seed, by `torch.rand` or `torch.randn`."""
        seeds, episodes = observations.shape[:2]
        if not self._of_round:
            self.begin(seeds, episodes)
        drawn = [draw(episodes, *shape, generator=g) for g in self._of_round]
        return torch.stack(drawn).to(observations.device)

    def state_dict(self) -> dict[str, Any]:
        return {"generators": torch.stack([g.get_state() for g in self._generators])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for g, saved in zip(self._generators, state["generators"], strict=True):
            g.set_state(saved.clone())


class SampledPolicy(RandomPolicy):
    """A policy that makes actions of normal noise, as flows do.

    Args:
        explore: `explore(observations, noise) -> actions`, `(S, n, O)` and `(S, n, *shape)` to `(S, n, A)`.
        shape: of one state's noise. seeds: the S seeds.
    """

    def __init__(
        self,
        explore: Callable[[Tensor, Tensor], Tensor],
        shape: Sequence[int],
        seeds: Sequence[int],
    ):
        super().__init__(seeds)
        self._explore, self._shape = explore, tuple(shape)

    def __call__(self, observations: Tensor) -> Tensor:
        """Samples an action at every observation."""
        return self._explore(observations, self.draws(torch.randn, observations, *self._shape))
