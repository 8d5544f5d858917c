"""RLPD: Reinforcement Learning with Prior Data (Ball, Smith, Kostrikov and Levine 2023, arXiv:2302.02948).

SAC from scratch, with a dataset at hand. Three things make that enough, with no pre-training and no
penalty: every batch is half the dataset's and half the replay's (section 4.1), LayerNorm keeps critics
from extrapolating to unseen actions (4.2), and an ensemble takes many updates per step (4.3).

    python algos/rlpd.py task=corerl/pendulum steps=10000 algo.utd=4
    corerl train algo=rlpd task=d4rl/antmaze-large-diverse-v2 seeds=5

`steps` are those of the environment.

What differs from the paper and from the authors' code (ikostrikov/rlpd at c90fd4b), and its switch.

    item               paper           authors                         ours                  switch
 1  minibatches        half and half   cut from one interleaved batch  half and half: same   -
                                       of `utd` times the size
 2  policy's update    -               once a step, after the critics, the authors'          -
                                       on the last minibatch; alpha
                                       shares its sample
 3  target entropy     -               -D/2; users of their other      -D/2                  target_entropy
                                       code call -D (SAC's) right
 4  critics in backup  -               two, drawn without replacement, the authors'          critic_subsample
                                       and one on AntMaze
 5  updates before     -               an option: on the data alone    the same              phase=both
 6  LayerNorm          in the critics  before the activation, 1e-6     the authors'          layer_norm
 7  critics' losses    -               averaged                        summed (Adam: same)   -
 8  replay at update   -               with the newest step            before that step      -
 9  policy's outputs   -               mean and std: each Glorot's     Glorot's of both, up  -
                                       weights of its own              to 5 % smaller
10  first steps        -               uniform actions, also after     the authors'          warmup_steps
                                       updates on the data alone

An update reads what the replay held before the step that it goes with (8), so that a GPU learns while
the simulators run.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from corerl.algos import sac
from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, within
from corerl.nn import compile, ensembles, networks, optim
from corerl.nn.acting import PolicyActing
from corerl.nn.critics import Critics, regression
from corerl.nn.learner import GradientStep, Spec
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import TanhGaussian, Temperature
from corerl.training import preprocessing
from corerl.training.offline_to_online import FineTuning, Online, Phases, check_warmup
from corerl.training.run import Run


@dataclass
class Config(MLPSettings, FineTuning):
    name: str = "rlpd"
    label: str = "RLPD"

    utd: int = positive(20)  # critic updates per step of the environment
    critics: int = positive(10)  # number of critics
    critic_subsample: int = positive(2)  # number of drawn critics whose minimum is the target
    layer_norm: bool = True  # LayerNorm in the critics
    backup_entropy: bool = True  # adds the policy's entropy to the critics' target
    actor_q: str = one_of("mean", "min")  # policy follows the mean (authors) | min of all critics

    discount: float = within(0.99, "[0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every critic update
    initial_temperature: float = positive(1.0)  # first value of the entropy temperature alpha
    target_entropy: float | None = None  # entropy that alpha aims for (null: -action dimension / 2)

    actor_lr: float = positive(3e-4)
    critic_lr: float = positive(3e-4)
    temperature_lr: float = positive(3e-4)
    batch_size: int = positive(256)  # rows of one critic update
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    log_std_min: float = -20.0
    log_std_max: float = 2.0
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)

    phase: str = "online"  # online | both (offline, then online) | offline (updates on data only)
    online: Online = group(Online, warmup_steps=5_000, offline_ratio=0.5)

    def __post_init__(self):
        super().__post_init__()
        ensembles.check(self)
        check_warmup(self)


class Draws(NamedTuple):
    """Random numbers of one step with U critic updates. All are normal but `subsets`."""

    next_actions: Tensor  # (S, U, B, A)
    actions: Tensor  # (S, B, A)
    subsets: Tensor  # (S, U, critics), uniform, for the critics that make the backup


class RLPD(PolicyActing):
    """RLPD agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self.normalizer = cfg, spec.normalizer
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        self.target_entropy = -A / 2 if cfg.target_entropy is None else cfg.target_entropy
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        options = {"init": networks.xavier(), "activation": cfg.mlp_options["activation"]}
        limits = {"log_std_min": cfg.log_std_min, "log_std_max": cfg.log_std_max}
        policy = TanhGaussian([O, *hidden, A], spec.lead, rngs, **limits, **options)
        norms = {"layer_norm": 1e-6 if cfg.layer_norm else None, "norm_first": True}
        critic = Critics([O, A, *hidden], rngs, heads=cfg.critics, **norms, **options)
        self.policy, self.critic = policy.to(device), critic.to(device)
        self.target = optim.target_of(self.critic)
        self.temperature = Temperature(spec.seeds, cfg.initial_temperature).to(device)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.actor_lr)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        alpha = optim.Adam(self.temperature.parameters(), cfg.temperature_lr)
        self.temperature_optimizer = alpha
        self._critic_step = GradientStep(self.critic_loss, q, spec.mode)
        self._policy_step = GradientStep(self.policy_loss, (pi, alpha), spec.mode)

    # Losses. Batch fields are (S, B, ...), noise (S, B, A), uniforms (S, critics); each loss is (S,).

    def critic_loss(
        self, batch: Batch, noise: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses all critics towards r + discount * (min Q' of a few - alpha * log pi) (Algorithm 1)."""
        subset = ensembles.subset(uniforms, self.cfg.critics, self.cfg.critic_subsample)
        with torch.no_grad():
            next_actions, log_prob = self.policy.sample(batch.next_observations, noise)
            next_q = ensembles.call(self.target, subset, batch.next_observations, next_actions)
            value = next_q.amin(1)
            if self.cfg.backup_entropy:
                value = value - self.temperature()[:, None] * log_prob
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * value
        return regression(self.critic(batch.observations, batch.actions), y)

    def policy_loss(self, batch: Batch, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds SAC's losses of policy and temperature, at the mean or the least of all critics."""
        actions, log_prob = self.policy.sample(batch.observations, noise)
        q = self.critic(batch.observations, actions)
        q = q.amin(1) if self.cfg.actor_q == "min" else q.mean(1)
        losses = q, log_prob, self.temperature(), self.target_entropy
        return sac.policy_and_temperature_loss(*losses)

    def update(self, batches: list[Batch], draws: Draws) -> dict[str, Tensor]:
        """Takes one critic step per batch. Policy and temperature follow on the last."""
        for i, batch in enumerate(batches):
            metrics = self._critic_step(batch, draws.next_actions[:, i], draws.subsets[:, i])
            optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics | self._policy_step(batches[-1], draws.actions)


build = RLPD


def train(cfg: Config, run: Run) -> None:
    data, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size)
    agent = RLPD(cfg, run.spec(data, normalizer))
    phases = Phases(cfg, run, data, agent)
    normal = run.normal("noise", cfg.utd + 1, cfg.batch_size, data.action_dim, block=32)
    subsets = run.uniform("asked", cfg.utd, cfg.critics)
    uniform = run.uniform("random actions", 1, data.action_dim)
    update = compile.captured(agent.update, run.mode)
    explore = compile.captured(agent.explore, run.mode)
    state = {"agent": agent, "buffer": data, "noise": normal, "asked": subsets, "uniform": uniform}
    for step in run.steps(**state, **phases.parts):
        learns, acts = phases.learns(step), phases.online(step)
        if acts:
            policy = explore if learns else lambda *_: 2 * uniform.next() - 1
            actions = phases.choose(policy)  # on the host before the update: see difference 8
        if learns:
            batches = [phases.sample(step) for _ in range(cfg.utd)]
            noise = normal.next()
            draws = Draws(noise[:, :-1], noise[:, -1], subsets.next())
            run.log(step, update(batches, draws) | phases.metrics())
        if acts:
            phases.step(actions)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
