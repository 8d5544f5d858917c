"""TD3+BC of this library with the chances that CORL's file takes with the same seed.

    corerl train algo=results/reproduced/same_data/corl_draws.py task=corerl/halfcheetah-replay-regenerated

CORL seeds torch and numpy once: from torch come the initial weights of actor and critics, then the
smoothing noise of each update; from numpy come the row numbers. All three are made again here, from the
rows that `d4rl.qlearning_dataset` leaves of the data (none at a time limit), normalised as CORL does it.
With all of them a seed of ours is CORL's seed, but for rounding; `algo.weights=false` and so on put ours
in the place of one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from corerl.algos import td3_bc
from corerl.buffers.replay import OfflineBuffer
from corerl.nn import compile
from corerl.nn.networks import Normalizer
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config(td3_bc.Config):
    name: str = "corl_draws"
    label: str = "TD3+BC, CORL's draws"

    weights: bool = True  # CORL's initial weights,
    batches: bool = True  # its row numbers,
    noise: bool = True  # its smoothing noise,
    rows: bool = True  # its rows and their normalisation; false: ours


class Draws:
    """Draws of the S seeds, one after the other; a checkpoint keeps how many there were.

    Args:
        each: of one seed, called once per update: returns its next draw.
    """

    def __init__(self, each: list[Callable[[], Tensor]]):
        self._each, self._drawn = each, 0

    def next(self) -> Tensor:
        self._drawn += 1
        return torch.stack([draw() for draw in self._each])

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self._drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        while self._drawn < state["drawn"]:
            self.next()


def initial(seed: int, sizes: tuple[int, int], cfg: Config):
    """Returns the layers of CORL's actor and of its two critics, and torch's generator after them."""
    O, A = sizes
    hidden = [cfg.hidden_width] * cfg.hidden_layers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        actor, *critics = (_layers(n) for n in ([O, *hidden, A], *2 * ([O + A, *hidden, 1],)))
        rng = torch.Generator()
        rng.set_state(torch.get_rng_state())
    return actor, critics, rng


def _layers(sizes: list[int]) -> list[nn.Linear]:
    return [nn.Linear(a, b) for a, b in pairwise(sizes)]


@torch.no_grad()
def put(agent: td3_bc.TD3BC, place: int, actor: list[nn.Linear], critics: list[list]) -> None:
    """Gives these weights to the seed at `place`, in networks and targets."""
    copies = [(x, (place,), actor) for x in (agent.actor, agent.target_actor)]
    copies += [
        (x, (place, i), critic)
        for x in (agent.critic, agent.target_critic)
        for i, critic in enumerate(critics)
    ]
    for network, where, layers in copies:
        for mine, theirs in zip(network.layers, layers, strict=True):
            weight, bias = mine.weight[where], mine.bias[where]
            weight.copy_(theirs.weight.mT.reshape(weight.shape))
            bias.copy_(theirs.bias.reshape(bias.shape))


def rows_of_corl(run: Run, batch_size: int) -> tuple[OfflineBuffer, Normalizer]:
    """Returns the buffer without rows at a time limit, and the normaliser of those it has."""
    data = run.dataset()
    rows = data.transitions()
    keep = ~data.truncated[rows.rows]
    rows = rows._replace(**{name: x[keep] for name, x in rows._asdict().items() if x is not None})
    mean, std = rows.observations.mean(0), rows.observations.std(0) + 1e-3
    rows = rows._replace(
        observations=(rows.observations - mean) / std,
        next_observations=(rows.next_observations - mean) / std,
    )
    return OfflineBuffer(rows, run.seeds, batch_size), Normalizer.of(mean, std)


def train(cfg: Config, run: Run) -> None:
    size = cfg.batch_size
    if cfg.rows:
        buffer, normalizer = rows_of_corl(run, size)
    else:
        buffer, normalizer = preprocessing.load(run, cfg.data, size)
    sizes = buffer.observation_dim, buffer.action_dim
    agent = td3_bc.TD3BC(cfg, run.spec(buffer, normalizer))
    noise = run.normal("noise", size, sizes[1])
    starts = [initial(seed, sizes, cfg) for seed in run.seeds]
    if cfg.weights:
        for place, (actor, critics, _) in enumerate(starts):
            put(agent, place, actor, critics)
    if cfg.noise:
        noise = Draws([_normal(rng, (size, sizes[1])) for *_, rng in starts])
    if cfg.batches:
        buffer._indices = Draws([_numbers(seed, len(buffer), size) for seed in run.seeds])
    update = compile.captured(agent.update, run.mode)
    delay = range(cfg.policy_delay)
    for step in run.steps(stride=cfg.policy_delay, agent=agent, buffer=buffer, noise=noise):
        metrics = update([buffer.sample() for _ in delay], [noise.next() for _ in delay])
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


def _normal(rng: torch.Generator, shape: tuple[int, int]) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape, generator=rng)


def _numbers(seed: int, rows: int, size: int) -> Callable[[], Tensor]:
    rng = np.random.RandomState(seed)
    return lambda: torch.from_numpy(rng.randint(0, rows, size=size))


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
