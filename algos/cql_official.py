"""CQL as its authors' code has it (arXiv:2006.04779, aviralkumar2907/CQL), and NeoRL-2's after it.

`cql.py` with a warm start, another Lagrange loss, and parts that move before others look at them. The code is
known not to give the paper's numbers, whose Gym runs had algo.policy_lr=3e-5 and algo.threshold=10.

    corerl train algo=cql_official task=d4rl/antmaze-umaze-v2 seeds=4
    corerl train algo=cql_neorl2 task=neorl2/DMSD seeds=[7,42,210]

`algo=cql_neorl2` is that of NeoRL-2's benchmark (arXiv:2503.19267, offlinerl 0.0.2). What the two do
otherwise than `cql.py`, and its switch:

    item               authors                         NeoRL-2                        switch
 1  order              alpha is moved first            alpha, then policy, then       order
                                                       critics
 2  warm start         40,000 updates clone the data   the same                       bc_steps
 3  Lagrange loss      a' * (w * gap - tau), a' from   the same                       lagrange
                       1; tau below 0: w is fixed
 4  max backup         max per critic, then min        -                              max_backup
 5  entropy in backup  none                            SAC's                          backup_entropy
 6  without densities  Q(s, a) joins the samples       the same                       importance_sampling
                       (version 2)
 7  first weights      rlkit's: outputs +-1e-3,        torch's                        init
                       critics' +-3e-3
 8  mean in log pi     clamped to +-9, ours as it is   -                              -

A threshold tau does not carry over between the two Lagrange losses (3). Their rlkit draws hidden weights on
+-1/sqrt of a layer's outputs, for its inputs. It begins targets at weights of their own, ours at the
critics' (7).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.algos import cql
from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, require
from corerl.nn import conservative, networks, optim
from corerl.nn.conservative import CQLNoise
from corerl.nn.learner import GradientStep, Spec
from corerl.training import preprocessing
from corerl.training.run import Run

RLKIT = networks.uniform(bias=0.1, fan="out")
TORCH = networks.torch_init
WEIGHTS = {
    "official": (RLKIT, networks.uniform(3e-3), RLKIT, networks.uniform(1e-3)),
    "torch": (TORCH, TORCH, TORCH, TORCH),
    **cql.WEIGHTS,
}


@dataclass
class Config(cql.Config):
    name: str = "cql_official"

    weight: float = at_least(0, 5.0)  # w, weight of the conservative penalty
    lagrange: str = one_of(  # off | official (holds w * gap at tau) | young_geng (holds gap at tau)
        "off", "official", "young_geng"
    )
    threshold: float = 0.8  # tau, which lagrange aims for (official: w is fixed if tau < 0)
    max_backup: str = one_of(  # off | per_critic (min of max Q) | min_first (max of min Q)
        "off", "per_critic", "min_first"
    )
    backup_entropy: bool = False  # adds the policy's entropy to the backup, as SAC does
    bc_steps: int = at_least(0, 39_999)  # number of first updates, in which the policy clones data

    policy_lr: float = positive(1e-4)  # learning rate of policy and temperature
    init: str = one_of(*WEIGHTS)  # initial weights (torch is NeoRL-2's, for the others see cql)
    log_std_multiplier: float | None = None  # initial scale of log-std, learned (null: none)
    log_std_min: float = -5.0

    order: str = one_of(  # alpha_first (authors) | in_turn (NeoRL-2) | joint (CORL, all at once)
        "alpha_first", "in_turn", "joint"
    )
    data: preprocessing.Preprocess = group(preprocessing.Preprocess)

    def __post_init__(self):
        super().__post_init__()
        require(
            not (self.backup_entropy and self.max_backup == "per_critic"),
            "algo.backup_entropy=true needs one best action, but algo.max_backup=per_critic "
            "chooses one for each critic. Set algo.max_backup=min_first",
        )


class OfficialCQL(cql.CQL):
    """Official CQL agents of S seeds, trained together."""

    weights = WEIGHTS

    def __init__(self, cfg: Config, spec: Spec):
        super().__init__(cfg, spec)
        self._cloning_step = GradientStep(self.cloning_loss, self.policy_optimizer, spec.mode)

    def cloning_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the warm start's loss: alpha * log pi(a|s) - log pi(a_data|s)."""
        log_pi = self.policy.sample(batch.observations, noise)[1]
        data_log_pi = self.policy.log_prob(batch.observations, batch.actions)
        loss = (self.alpha.detach()[:, None] * log_pi - data_log_pi).mean(-1)
        return loss, {"policy_loss": loss}

    def backup(self, batch: Batch, noise: Tensor) -> Tensor:
        """Returns y = r + discount * min Q'(s', a'), `(S, B)`, with the policy's entropy if wanted."""
        actions, log_pi = self.policy.sample_many(batch.next_observations, noise)
        q = self.target(batch.next_observations, actions)
        if self.cfg.max_backup == "per_critic":
            value = q.amax(2).amin(1)
        else:
            value, best = conservative.max_backup(q)
        if self.cfg.backup_entropy:
            log_pi = log_pi.gather(1, best[:, None]).squeeze(1)
            value = value - self.alpha[:, None] * log_pi
        return batch.rewards + self.cfg.discount * (1 - batch.terminated) * value

    def penalty(self, gap: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the conservative term, and the loss of the multiplier, from gaps `(S, 2)`."""
        cfg = self.cfg
        if cfg.lagrange != "official":
            return super().penalty(gap)
        if cfg.threshold < 0:
            return cfg.weight * gap.sum(1), torch.zeros_like(gap[:, 0])
        return self.lagrangian(cfg.weight * gap - cfg.threshold)

    def update(self, batch: Batch, noise: CQLNoise, uniforms: Tensor) -> dict[str, Tensor]:
        """Takes one step of everything, in the order of the settings."""
        return self._update(self._policy_step, batch, noise, uniforms)

    def warm_start(self, batch: Batch, noise: CQLNoise, uniforms: Tensor) -> dict[str, Tensor]:
        """Takes one step of everything, in which the policy clones the data."""
        return self._update(self._cloning_step, batch, noise, uniforms)

    def _update(self, policy_step: GradientStep, batch: Batch, noise: CQLNoise, uniforms: Tensor):
        order = self.cfg.order
        alpha, metrics = self._alpha_step.gradients(batch, noise)
        if order != "joint":
            self._alpha_step.apply(alpha)
        policy, policy_metrics = policy_step.gradients(batch, noise.actions[:, 0])
        if order == "in_turn":
            policy_step.apply(policy)
        critic_metrics = self._critic_step(batch, noise, uniforms)
        if order == "joint":
            self._alpha_step.apply(alpha)
        if order != "in_turn":
            policy_step.apply(policy)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | policy_metrics | critic_metrics


build = OfficialCQL


def train(cfg: Config, run: Run) -> None:
    goes_on = bool(cfg.online.checkpoint)  # then the policy has been cloned
    cql.learn(OfficialCQL, cfg, run, cloned=0 if goes_on else cfg.bc_steps)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
