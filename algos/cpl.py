"""Contrastive Preference Learning (Hejna et al. 2024, arXiv:2310.13639).

Preferences follow regret, and the advantage of the optimal policy of maximum-entropy RL is
alpha log pi(a|s), so that a policy is learned from comparisons by one contrastive loss: no reward, no
critic, no bootstrapping. With the score of a segment A = alpha sum_t log pi(a_t|s_t),

    L = -log [ exp A(preferred) / (exp A(preferred) + exp b A(other)) ],

where a bias b < 1 keeps the policy near the data; behaviour cloning of all segments comes first.

    python algos/cpl.py task=corerl/pendulum steps=20000 algo.bc_steps=8000 seeds=3
    corerl train algo=cpl task=d4rl/hopper-medium-replay-v2 seeds=5

The authors' variants are tables: algo=cpl_bc (no bias, cloning goes on) and algo=cpl_kl (log pi counts from
the cloned policy's).

The authors' code is jhejna/cpl at b333667; the paper was not at hand, so the equations are our reading of
that code.

Differences, each with its reason:
 1. The score is a sum without discount (authors' code).
 2. A tie, y = 1/2, counts half for either order (authors).
 3. Comparisons are drawn with replacement; the authors walk through a permutation. Where `crop` is set,
    every segment is cropped by itself; the authors crop all first segments of a batch alike, and all
    second ones.
 4. The second phase has an optimiser of its own, which is the authors' reset of the first one's; its rate
    rises linearly over `warmup_steps` to `lr_factor` times `lr`, also where bc_steps=0, when theirs is
    constant.
 5. Dropout acts after each hidden activation, theirs before: with ReLU it is the same. The reference
    policy has none (authors).
 6. The authors' table on ranked segments (each batch pairs segments afresh by their regret) is not
    offered: a comparison here is given by its label. algo=cpl_ranked compares all pairs of a batch, which is
    what they ran on D4RL.

The labels are taken to be by regret. A teacher that compares returns marks slow starts as not preferred, so
that the loss repels the data's actions where episodes begin; algo.preferences.judge=advantage and =regret are
teachers of the kind that CPL assumes (results/reproduced/cpl_labels).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.config import at_least, group, one_of, positive, require, within
from corerl.nn import compile, networks, optim, transformer
from corerl.nn.acting import PolicyActing
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import GaussianPolicy, unsquashed
from corerl.preferences import loading
from corerl.preferences.buffer import PairBuffer, Pairs
from corerl.preferences.reward_models import preference_loss
from corerl.preferences.sources import Preferences
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Config(MLPSettings):
    name: str = "cpl"
    label: str = "CPL"

    alpha: float = positive(0.1)  # temperature (the advantage of an action is alpha log pi(a|s))
    bias: float = within(0.5, "(0, 1]")  # b, factor of the losing segment's score (1: no bias)
    bc_weight: float = at_least(0, 0.0)  # weight of cloning beside the contrastive loss (CPL-BC: 1)
    reference: bool = False  # measures log pi relative to the cloned policy's (CPL-KL)
    bc_steps: int = at_least(0, 200_000)  # number of first updates, which clone all segments

    lr: float = positive(1e-4)
    warmup_steps: int = positive(10_000)  # contrastive updates in which the learning rate rises
    lr_factor: float = positive(1.0)  # ratio of contrastive to cloning learning rate (CPL-KL: 0.1)
    pairs: int = positive(96)  # comparisons in a batch
    crop: int | None = positive(None)  # steps read of each segment in a batch (null: all)
    preferences: Preferences = group(Preferences)
    policy: str = one_of("deterministic", "gaussian")  # deterministic (squared error) | gaussian
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(512)
    dropout: float = within(0.25, "[0, 1)")  # dropout rate in the policy
    log_std_min: float = -5.0  # lower limit of the log-std (policy=gaussian)
    log_std_max: float = 2.0  # upper limit of the log-std (policy=gaussian)
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)

    def __post_init__(self):
        super().__post_init__()
        require(
            self.bc_steps > 0 or not self.reference,
            "algo.reference=true compares with a cloned policy, but algo.bc_steps=0 trains none. Raise "
            "algo.bc_steps",
        )
        unused = (*loading.REWARDS, "end_reward", "weighting")
        loading.refuse(self.data, *unused, reason="CPL learns only from comparisons")
        loading.check_crop(self.crop, self.preferences)

    def first_phase(self) -> tuple[int, str]:
        return self.bc_steps, "algo.bc_steps"


class CPL(PolicyActing):
    """CPL agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        self.policy = unsquashed(cfg, spec, init=networks.orthogonal(1.0), **cfg.mlp_options)
        self.normalizer = spec.normalizer
        if cfg.reference:
            self.reference = optim.target_of(self.policy)
        self.bc_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self.optimizer = optim.Adam(self.policy.parameters(), cfg.lr * cfg.lr_factor)
        self.schedule = optim.Schedule(self.optimizer, optim.warmup(cfg.warmup_steps))
        self._bc_step = GradientStep(self.bc_loss, self.bc_optimizer, spec.mode)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode, self.schedule)

    # Losses, each (S,).

    def loss(self, pairs: Pairs, keys: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the contrastive loss, and `bc_weight` times behaviour cloning."""
        log_prob = self._log_prob(self.policy, pairs, keys)
        bc_loss = -log_prob.mean((1, 2, 3))
        if self.cfg.reference:
            with torch.no_grad():
                cloned = self._log_prob(self.reference, pairs, None)
            log_prob = log_prob - cloned
        scores = self.cfg.alpha * log_prob.sum(-1)
        first, second = scores.unbind(-1)
        if_second = F.softplus(self.cfg.bias * first - second)
        if_first = F.softplus(self.cfg.bias * second - first)
        loss = (pairs.labels * if_second + (1 - pairs.labels) * if_first).mean(-1)
        _, accuracy = preference_loss(scores, pairs.labels)
        metrics = {"cpl_loss": loss, "bc_loss": bc_loss, "accuracy": accuracy}
        return loss + self.cfg.bc_weight * bc_loss, metrics

    def bc_loss(self, pairs: Pairs, keys: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes -log pi of every step of both segments."""
        loss = -self._log_prob(self.policy, pairs, keys).mean((1, 2, 3))
        return loss, {"bc_loss": loss}

    def _log_prob(self, policy: GaussianPolicy, pairs: Pairs, keys: Tensor | None) -> Tensor:
        """Returns log pi `(S, B, 2, L)`, up to a constant where the policy is deterministic."""
        observations, actions = pairs.observations.flatten(1, 3), pairs.actions.flatten(1, 3)
        shape = (observations.shape[1], self.cfg.hidden_width)
        mean = policy(observations, transformer.multipliers(keys, shape, self.cfg.dropout))
        if self.cfg.policy == "deterministic":
            log_prob = -(mean - actions).square().sum(-1)
        else:
            log_prob = policy.log_prob_given(mean, actions)
        return log_prob.view(pairs.observations.shape[:-1])

    def imitate(self, pairs: Pairs, keys: Tensor | None = None) -> dict[str, Tensor]:
        """Takes one step of the first phase. `keys` (S, layers) are for dropout."""
        metrics = self._bc_step(pairs, keys)
        if self.cfg.reference:
            optim.polyak(self.reference, self.policy, 1.0)
        return metrics

    def update(self, pairs: Pairs, keys: Tensor | None = None) -> dict[str, Tensor]:
        """Takes one step of the second phase. `keys` (S, layers) are for dropout."""
        return self._step(pairs, keys)


build = CPL


def train(cfg: Config, run: Run) -> None:
    run.cfg.policy_steps()  # raises where cloning leaves the policy none
    compared = loading.comparisons(run, cfg.preferences, cfg.data.clip_actions)
    compared, normalizer = loading.prepared(run, compared, cfg.data)
    pairs = PairBuffer(compared, run.seeds, cfg.pairs, run.device, cfg.crop)
    agent = CPL(cfg, run.spec(pairs, normalizer))
    keys = None
    if cfg.dropout:
        keys = transformer.dropout_keys(run.seeds, cfg.hidden_layers, run.device)
    imitate = compile.captured(agent.imitate, run.mode)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, pairs=pairs, keys=keys):
        learn = imitate if step <= cfg.bc_steps else update
        metrics = learn(pairs.sample(), keys and keys.next())
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
