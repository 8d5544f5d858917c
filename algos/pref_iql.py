"""P-IQL, also called MR: a Markovian reward from comparisons, and IQL on what it says.

Reward networks r(s, a) are fitted to the Bradley-Terry model of preferences (Christiano et al. 2017,
arXiv:1706.03741),

    P(second preferred) = sigmoid( sum_t r of the second - sum_t r of the first ),

and IQL (algos/iql.py; Kostrikov et al. 2022) learns from transitions whose rewards are r(s, a). This is the
baseline of Inverse Preference Learning, with the settings of its authors' code,
jhejna/inverse-preference-learning at 8037b84.

    python algos/pref_iql.py task=corerl/pendulum steps=20000 algo.reward.steps=5000 seeds=3
    corerl train algo=pref_iql task=d4rl/hopper-medium-replay-v2 seeds=5

The default fits one network; `algo.reward.members` is for ensembles, whose mean IQL gets. With
`algo.reward.ensemble=worst` or `uncertainty` it gets a pessimistic one (Coste et al. 2024, arXiv:2310.02743),
whose members are centred over each batch.

`algo=hindsight_prior_iql` adds Hindsight PRIOR (corerl/preferences/hindsight.py): the first `world.steps`
updates fit a world model, and `reward.prior` weighs its say in which steps mattered.

Differences, each with its reason:
 1. Both learn from the first update on, and the reward stays as it is after `reward.steps` (authors).
    `reward_first=true` makes those steps the reward's alone, which is what the name says.
 2. IQL is our own with its authors' order and initial weights (gain sqrt(2)); the port in IPL's code takes
    the policy's advantage before the value's step, and has a gain of 1, as the reward has here.
 3. IQL's inverse temperature `beta` is a factor; in IPL's code it divides.
 4. All steps of a crop count for the reward (authors), which is one more than IPL looks at.
 5. Without the dataset, IQL learns from the transitions of the reward's batch, in which no episode ends
    (authors); from batches of its own where `reward.seed` makes the reward's those of all seeds.
 6. Rewards are not normalised (authors); `algo.data.reward_scale` and `reward_shift` are for learned ones.
 7. Comparisons are drawn with replacement; the authors walk through a permutation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from corerl.algos import iql
from corerl.buffers.replay import Batch
from corerl.config import added, group, one_of, positive, require
from corerl.nn import compile
from corerl.nn.learner import Spec
from corerl.preferences import hindsight, loading
from corerl.preferences.buffer import PairBuffer, Pairs, transitions
from corerl.preferences.hindsight import World
from corerl.preferences.reward_models import Markov, MarkovReward, markov, unfitted
from corerl.preferences.sources import Preferences
from corerl.training.run import Run


@dataclass
class Config(iql.Config):
    actions = "continuous"
    name: str = "pref_iql"
    label: str = "P-IQL"

    critic_loss: str = one_of("mean", "sum")  # mean (IPL's code) | sum over the two critics
    reward: Markov = group(  # with the settings of IPL's authors
        Markov,
        steps=20_000,
        members=1,
        hidden_layers=2,
        activation="relu",
        init="orthogonal",
        bounded=False,
        batch_size=8,
        stop_accuracy=None,
    )
    world: World = added(group(World))  # world model of Hindsight PRIOR (if reward.prior > 0)
    reward_first: bool = False  # fits the reward before IQL starts (false: both at once)
    preferences: Preferences = group(Preferences)
    crop: int | None = positive(64)  # steps read of each segment in a batch (null: all)
    replay: bool = True  # IQL learns from the task's dataset (false: the compared segments)

    def __post_init__(self):
        super().__post_init__()
        require(
            self.phase == "offline",
            f"algo.phase={self.phase} must be offline, because P-IQL learns offline only",
        )
        loading.refuse(
            self.data,
            "return_range",
            reason="the rewards are learned, so the range of the dataset's returns does not scale "
            "them. Set algo.data.reward_scale instead",
        )
        loading.check_crop(self.crop, self.preferences, least=2)

    def first_phase(self) -> tuple[int, str]:
        world = self.world.steps if self.reward.prior else 0
        setting = "algo.world.steps + algo.reward.steps" if world else "algo.reward.steps"
        return world + (self.reward.steps if self.reward_first else 0), setting


class PrefIQL(iql.IQL):
    """P-IQL agents of S seeds, as `IQL`, each with a reward of its own. `reward` has S of them."""

    def __init__(self, cfg: Config, spec: Spec, reward: MarkovReward):
        super().__init__(cfg, spec)
        self.reward = reward

    def fit_reward(self, pairs: Pairs) -> dict[str, Tensor]:
        """Takes one step of the reward."""
        return self.reward.update(pairs)

    def update(self, batch: Batch, uniforms: Tensor | None = None) -> dict[str, Tensor]:
        """Takes IQL's step on the rewards that the networks give. Those of the batch are not read."""
        with torch.no_grad():
            inputs = torch.cat([batch.observations, batch.actions], -1)
            rewards = self.reward.combined(self.reward(inputs[:, None]))
            scale, shift = self.cfg.data.reward_scale, self.cfg.data.reward_shift
            batch = batch._replace(rewards=rewards * scale + shift)
        return super().update(batch, uniforms) | {"reward": batch.rewards.mean(-1)}


def build(cfg: Config, spec: Spec) -> PrefIQL:
    """Returns the agent with a reward that has learned nothing yet."""
    return PrefIQL(cfg, spec, unfitted(cfg.reward, spec))


def train(cfg: Config, run: Run) -> None:
    waits, _ = cfg.first_phase()
    policy_steps = run.cfg.policy_steps()
    compared, buffer, normalizer = loading.load(cfg, run, rankings=True, timed=cfg.replay)
    reward, segments = markov(run, cfg.reward, compared, crop=cfg.crop, crop_alike=True)
    if not cfg.replay and cfg.reward.seed is not None:
        size = segments.batch_size  # the batches of `segments` are the same for all seeds
        buffer = PairBuffer(compared, run.seeds, size, run.device, cfg.crop, crop_alike=True)
    agent = PrefIQL(cfg, run.spec(segments, normalizer, policy_steps), reward)
    world, windows, begins = None, None, 0
    if cfg.reward.prior:
        seeds, begins = cfg.reward.seeds(run.seeds), cfg.world.steps
        world, windows = hindsight.offline(run, cfg.world, seeds, compared, segments.length)
    steps = segments.batch_size * compared.size * (segments.length - 1)
    rows = cfg.batch_size if cfg.replay else steps
    dropout = run.dropout(cfg, rows, block=32)
    fit_reward = compile.captured(agent.fit_reward, run.mode)
    update = compile.captured(agent.update, run.mode)
    state = {"agent": agent, "pairs": segments, "buffer": buffer, "dropout": dropout}
    for step in run.steps(**state, world=world, windows=windows):
        pairs = segments.sample()
        if step <= begins:
            metrics = world.update(windows.sample())
        else:
            fits = step <= begins + cfg.reward.steps
            metrics = fit_reward(world.judged(pairs) if world else pairs) if fits else {}
        if step > waits:
            drawn = pairs if buffer is None else buffer.sample()
            batch = drawn if cfg.replay else transitions(drawn)
            metrics = metrics | update(batch, dropout and dropout.next())
        run.log(step, metrics)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
