"""`corerl data snapshots`: states that a trained policy visits, as starts of another one's episodes."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from corerl.config import require
from corerl.policies.load import load
from corerl.policies.loaded_policy import Loaded
from corerl.policies.record import one_seed
from corerl.policies.simulation import simulate
from corerl.training.snapshots import Snapper, Snapshots, check_restorable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `corerl data snapshots` takes."""
    add = parser.add_argument
    add("run", metavar="RUN", help="a run's folder, <root>/<task>/<algorithm>-<hash>")
    add(
        "--out",
        type=Path,
        required=True,
        help="FILE.safetensors to write, for algo.start.snapshots",
    )
    add("--seed", type=int, help="one of the run's seeds (default: its first)")
    add("--episodes", type=int, default=10, help="episodes to play (default: 10)")
    add("--every", type=int, default=10, help="steps between two snapshots (default: 10)")


def run(args: argparse.Namespace) -> int:
    """Writes the file and prints what is in it."""
    for name in ("episodes", "every"):
        value = getattr(args, name)
        require(value > 0, f"--{name} {value} must be positive")
    agent = one_seed(load(args.run, args.seed))
    made = taken(agent, args.episodes, args.every)
    made.save(args.out)
    low, high = made.values.min(), made.values.max()
    print(
        f"{args.out}: {len(made.values):,} snapshots of {agent.label} on {made.task}, seed {agent.seeds[0]}, "
        f"{args.episodes} episodes, critic's values from {low:.3g} to {high:.3g}"
    )
    return 0


def taken(agent: Loaded, episodes: int, every: int) -> Snapshots:
    """Plays one seed's policy and returns the states every so many steps, with its critic's values.

    Raises:
        CorerlError: the policy remembers or has no critic, or the environment cannot be restored.
    """
    require(
        not agent.remembers,
        f"{agent.label} acts on the whole episode so far, which a snapshot does not keep. Choose a run of "
        "another algorithm",
    )
    agent.check_values()
    made: list[Snapper] = []

    def snapper() -> Snapper:
        env = agent.task.make_env()
        check_restorable(env)
        made.append(Snapper(env, every))
        return made[-1]

    simulate(agent, agent.task, episodes, make_env=snapper)
    kept = [pair for env in made for pair in env.kept]
    observations = torch.from_numpy(np.stack([seen for seen, _ in kept]))
    shown = observations.float()[None].to(agent.device)
    values = agent.values(shown, agent(shown)[:, :, None])[0, :, 0].cpu()
    return Snapshots(agent.task.id, observations, values, [state for _, state in kept])
