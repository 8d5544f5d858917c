"""MEX: maximise to explore, model-free (Liu et al. 2023, NeurIPS, arXiv:2305.18258).

One objective fits values and explores at once, max_f max_a f(s_0, a) - L(f) / eta, where L is the squared
Bellman error. On TD3 (algos/td3.py) it is a term in the loss of each critic:

    optimism=data     (Q(s, a) - y)^2 - eta Q(s, a)        as released
    optimism=policy   (Q(s, a) - y)^2 - eta Q(s, mu(s))    raises what the data does not hold down

As released it does not explore. Its gradients are those of TD3 on rewards that are eta / 2 larger, which
completing the square shows. On a task that never ends, every Q rises by eta / (2 (1 - discount)) and actions
compare as before. A larger reward is caution rather than curiosity (algos/rrs.py).

    python algos/mex.py task=gym/Pendulum-v1 steps=10000 algo.optimism=policy seeds=3
    corerl train algo=mex task=gym/MountainCarContinuous-v0 algo.optimism=policy algo.eta=0.1 seeds=5

Differences from the paper and the authors' code (agentification/MEX at 3125f9c, MEX_MF/IO.py):
 1. The paper's maximum is over actions at the first state of an episode. The code takes the batch's states
    and actions. `policy` takes the batch's states, and the policy's action for the best one.
 2. The code's `use_baseline` is left out. It subtracts a log-sum-exp over three actions, and the second
    critic's has a value of the first.
 3. What TD3 does otherwise is as in algos/td3.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.algos import td3
from corerl.algos.td3 import TD3
from corerl.buffers.replay import Batch
from corerl.config import at_least, one_of
from corerl.training.run import Run


@dataclass
class Config(td3.Config):
    name: str = "mex"
    label: str = "MEX"

    eta: float = at_least(0, 1e-3)  # weight of the optimistic term in the critics' loss
    optimism: str = one_of("data", "policy")  # raises Q at actions of data (released) | policy


class MEX(TD3):
    """MEX agents of S seeds, trained together."""

    def critic_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Subtracts from TD3's loss the optimistic values, summed over the critics."""
        loss, metrics = super().critic_loss(batch, noise)
        actions = batch.actions
        if self.cfg.optimism == "policy":
            with torch.no_grad():
                actions = torch.tanh(self.actor(batch.observations))
        raised = self.critic(batch.observations, actions).mean(-1).sum(1)
        return loss - self.cfg.eta * raised, metrics | {"raised": raised}


build = MEX


def train(cfg: Config, run: Run) -> None:
    td3.learn(MEX, cfg, run)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
