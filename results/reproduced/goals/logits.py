"""How many of CRL's logits lie below log 1e-6, where the published numbers' code has no gradient.

    python logits.py RUN SEED

Prints the share and the median of 20,000 rows of the run's data, at later rows of their episodes as goals
and at random ones.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from corerl.buffers.goals import GoalBuffer
from corerl.data import tasks
from corerl.policies.load import restored, settings

FLOOR = np.log(1e-6)


def main(run: Path, seed: int) -> None:
    cfg = settings(run)
    agent = restored(cfg, run / f"seeds-{seed}").state["agent"]
    dataset = tasks.of(cfg).load()
    for name, share in (("later", 0.0), ("random", 1.0)):
        goals = replace(agent.cfg.goals, actor_p_randomgoal=share)
        batch = GoalBuffer(dataset, [seed], 20_000, goals, agent.cfg.discount).sample()
        first = torch.cat([batch.observations, batch.actions], -1)
        with torch.no_grad():
            logits = agent.critic(first, batch.actor_goals).amin(1).numpy()
        below, median = (logits < FLOOR).mean(), np.median(logits)
        print(f"{name}: below {FLOOR:.1f} {below:.3f}, median {median:.1f}")


main(Path(sys.argv[1]), int(sys.argv[2]))
