"""How far rewards are from the true one with Hindsight PRIOR, by its weight.

    python results/reproduced/preferences/prior_distances.py

Fits P-IQL's reward to 500 comparisons on corerl/halfcheetah-replay-regenerated, without the policy. All
weights have the same world model and batches. Writes prior_distances.csv beside this file and prints a table.
"""

import csv
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from corerl.data.tasks import resolve
from corerl.nn.learner import Spec
from corerl.preferences import hindsight, sources
from corerl.preferences.buffer import PairBuffer
from corerl.preferences.hindsight import WindowBuffer, World
from corerl.preferences.reward_distances import ROWS
from corerl.preferences.reward_models import Markov, unfitted
from corerl.preferences.sources import Preferences
from corerl.risk.rewards import starc_of_rows

TASK, SEEDS, LENGTH = "corerl/halfcheetah-replay-regenerated", [0, 1, 2], 32
WEIGHTS = (0.0, 1.0, 10.0, 100.0, 1000.0)
WORLD = World(steps=600, layers=2, width=64, dropout=0.0, lr=1e-3, batch_size=16)
STEPS = 1_500
REWARD = {"members": 1, "hidden_layers": 2, "hidden_width": 64, "activation": "relu"}
REWARD |= {"init": "orthogonal", "bounded": False, "batch_size": 8, "stop_accuracy": None}


def main() -> None:
    torch.set_num_threads(1)
    task = resolve(TASK)
    dataset = task.load()
    compared = sources.find(task, task.load, Preferences(pairs=500, length=LENGTH))
    sizes = compared.observation_dim, compared.action_dim
    world = hindsight.model(WORLD, sizes, SEEDS, LENGTH)
    windows = WindowBuffer(compared, SEEDS, WORLD.batch_size, LENGTH)
    losses = [
        world.update(windows.sample())["world_loss"].mean().item() for _ in range(WORLD.steps)
    ]
    print(
        f"world model: mean absolute error {losses[0]:.2f}, then {np.mean(losses[-50:]):.2f}",
        flush=True,
    )
    t = dataset.transitions()
    chosen = np.random.default_rng(0).permutation(len(t.rewards))[:ROWS]
    true = t.rewards[chosen].astype(np.float64)
    with (Path(__file__).parent / "prior_distances.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["weight", "seed", "starc", "rank", "accuracy"])
        for weight in WEIGHTS:
            reward = unfitted(Markov(**REWARD, prior=weight), Spec(*sizes, (), identities=SEEDS))
            pairs, right = PairBuffer(compared, SEEDS, 8), []
            for _ in range(STEPS):
                batch = pairs.sample()
                metrics = reward.update(world.judged(batch) if weight else batch)
                right.append(metrics["reward_accuracy"])
            found = reward.rewards(t.observations[chosen], t.actions[chosen])[:, 0].double().numpy()
            accuracy, rows = torch.stack(right[-200:]).mean(0), []
            for seed, mine in zip(SEEDS, found, strict=True):
                states = t.observations[chosen], t.next_observations[chosen]
                starc = starc_of_rows(mine, true, *states, t.terminated[chosen], 0.99)
                rows.append((starc, stats.spearmanr(mine, true)[0], accuracy[seed].item()))
                writer.writerow([weight, seed, *(round(x, 4) for x in rows[-1])])
            shown = [f"{np.mean(x):.2f} ± {np.std(x, ddof=1):.2f}" for x in zip(*rows, strict=True)]
            print(f"| {weight:g} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
