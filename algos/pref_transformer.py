"""Preference Transformer (Kim et al. 2023, ICLR, OpenReview Peot1SFDX0), then IQL.

People do not judge a segment step by step, so the reward is not of one state and action: a causal
transformer reads (a, s) of all steps up to t and says r_t, and a preference-attention layer, which looks
both ways, says how much each r_t counts: z_t = sum_j softmax_j(q_t k_j) r_j. A segment's score is the mean of
its z_t, and IQL learns from the dataset relabelled with r_t.

    python algos/pref_transformer.py task=corerl/pendulum steps=4000 algo.reward.steps=500
    corerl train algo=pref_transformer task=d4rl/hopper-medium-replay-v2 seeds=8

Of `steps`, the first `reward.steps` fit the reward; then the dataset is relabelled, and the others are IQL's
(algos/iql.py, with all its settings).

Differences from the paper, which we could not read, and the authors' code (csmile-1006/PreferenceTransformer
at f71647b), each with its reason:
 1. The README's commands leave the preference attention off, and a small head says r_t instead, whose mean
    is the score: `reward.attention=false`.
 2. The reward at a step is r_t of the `window` steps that end there, whose time steps begin at 1 (code).
    With preference attention it is r_t, not z_t (code). A window is no longer than the segments compared,
    since later time steps are never trained (code: query_len and seq_len have one default).
 3. `reward.keep=best` relabels with the weights of the smallest loss, looked at without dropout every five
    epochs, and in the end, on the last tenth of the comparisons, which are trained on as well (code,
    everywhere but on AntMaze, where it looks at the training loss); `last` with the last ones.
 4. Comparisons are drawn with replacement; the authors shuffle them anew for every epoch, whose last batch
    is smaller. Fewer comparisons than a batch are one batch.
 5. Padding cannot be looked at; the authors add -1e4 to its scores, which is the same in float32.
 6. A return is of a true episode, on the rows that D4RL keeps (code: ends are found by comparing states).
 7. q_t k_j is divided by the root of the values' dimension, which is 1, not of the keys' (code, ops.py:158):
    `reward.scale=width` divides it by that.
 8. Learned rewards are multiplied by the episode limit (code, train_offline.py:81): 1,000, but 700 on umaze,
    100 on pen and 200 on hammer and door, where configs/pref_transformer.yaml has `data.reward_scale`.
 9. The rows of the time table that no window reaches are left out.
10. The two segments of a comparison have dropout masks of their own; the authors pass one generator to both,
    so that their masks are the same.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from corerl import seeding
from corerl.algos import iql
from corerl.config import added, at_least, group, one_of, positive, require, within
from corerl.data.dataset import Dataset
from corerl.nn import compile, networks, optim, transformer
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.preferences import loading, relabelling
from corerl.preferences.buffer import PairBuffer, Pairs
from corerl.preferences.relabelling import Rows
from corerl.preferences.reward_models import combined, in_pieces, keep_where, preference_loss
from corerl.preferences.reward_transformer import Fitting, RewardTransformer
from corerl.preferences.sources import Preferences
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Reward(Fitting):
    """The reward transformer and how it is fitted."""

    prefix: ClassVar[str] = "algo.reward."

    attention: bool = True  # reward of a preference-attention layer (false: of a small head)
    scale: str = one_of("none", "width")  # none (authors) | width (attention / sqrt(width))
    keep: str = one_of("best", "last")  # best (weights of the smallest loss, authors) | last
    window: int = positive(100)  # steps of context when relabelling (at most a segment's length)
    members: int = added(positive(1))  # number of reward networks, each with batches of its own
    ensemble: str = added(  # members' mean | worst (lowest) | uncertainty (mean - penalty * var)
        one_of("mean", "worst", "uncertainty")
    )
    penalty: float = added(at_least(0, 0.5))  # weight of the variance with ensemble=uncertainty
    clip_actions: float = within(0.999, "(0, 1]")  # actions are clipped to +- this number


@dataclass
class Config(iql.Config):
    actions = "continuous"
    name: str = "pref_transformer"
    label: str = "PT+IQL"

    reward: Reward = group(Reward)
    preferences: Preferences = group(Preferences)
    spread_worst: bool = False  # subtracts the worst return evenly from the rewards of each episode
    data: preprocessing.Preprocess = group(  # return_range and reward_* are for learned rewards
        preprocessing.Preprocess, return_range=True, clip_actions=1 - 1e-5
    )

    def __post_init__(self):
        super().__post_init__()
        require(
            self.phase == "offline",
            f"algo.phase={self.phase} would mix the environment's rewards with learned ones of another "
            "scale. Use algo.phase=offline",
        )

    def first_phase(self) -> tuple[int, str]:
        return self.reward.steps, "algo.reward.steps"


class RewardModel(Stateful):
    """S ensembles of M rewards of segments of `length`. `rewards` uses the weights that were kept.

    The members of all seeds stand side by side, as S * M learners.
    """

    IMPROVED = 1e-3  # by how much a loss must be smaller to count as better

    def __init__(self, cfg: Reward, spec: Spec, length: int):
        self.cfg, self.window = cfg, min(cfg.window, length)
        sizes = spec.observation_dim, spec.action_dim
        rngs = [rng for rng in spec.rngs for _ in range(cfg.members)]
        self.network = RewardTransformer(cfg, *sizes, rngs, length).to(spec.device)
        self.kept = optim.target_of(self.network)
        self.best_loss = networks.Scalar(math.inf, len(rngs)).to(spec.device).requires_grad_(False)
        self.optimizer = optim.Adam(
            self.network.parameters(), cfg.lr, weight_decay=cfg.weight_decay
        )
        self.schedule = optim.Schedule(self.optimizer, optim.rise_and_fall(cfg.steps, cfg.warmup))
        self._step = GradientStep(self.loss, self.optimizer, spec.mode, self.schedule)

    def loss(self, pairs: Pairs, keys: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the labels' cross-entropy of every learner. `keys` are for dropout."""
        segments = pairs.observations.flatten(1, 2), pairs.actions.flatten(1, 2)
        size = pairs.observations.shape[2]
        scores = self.network.score(*segments, keys).unflatten(1, (-1, size))
        loss, accuracy = preference_loss(scores, pairs.labels)
        return loss, {"reward_loss": loss, "reward_accuracy": accuracy}

    def update(self, pairs: Pairs, keys: Tensor | None) -> dict[str, Tensor]:
        """Takes one step with M * B comparisons and M keys of each seed. Metrics are means over members."""
        members = self.cfg.members
        pairs = pairs._replace(
            observations=_to_members(pairs.observations, members),
            actions=_to_members(pairs.actions, members),
            labels=_to_members(pairs.labels, members),
        )
        metrics = self._step(pairs, None if keys is None else _to_members(keys, members))
        return {name: x.view(-1, members).mean(1) for name, x in metrics.items()}

    @torch.no_grad()
    def look(self, pairs: Pairs) -> None:
        """Keeps the weights of the learners whose loss on these comparisons is the smallest so far."""
        loss, _ = self.loss(pairs, None)
        best = self.best_loss.value
        not_better = ~(best - loss > self.IMPROVED)
        keep_where(not_better, list(self.kept.parameters()), list(self.network.parameters()))
        keep_where(not_better, [best], [loss])

    def rewards(self, rows: Rows, piece: int = 256) -> Tensor:
        """Returns r_t at every row, of the `window` steps that end there and all members, `(S, N)`."""
        network = self.kept if self.cfg.keep == "best" else self.network
        device = network.norm.weight.device
        starts = np.repeat(
            np.append(0, rows.episode_ends[:-1]), np.diff(rows.episode_ends, prepend=0)
        )
        starts = torch.from_numpy(starts).to(device)
        like = network.norm.weight
        parts = [torch.from_numpy(x).to(like) for x in (rows.observations, rows.actions)]
        back = torch.arange(-self.window + 1, 1, device=device)

        @torch.no_grad()
        def of_rows(chosen: slice) -> Tensor:
            at = torch.arange(chosen.start, chosen.stop, device=device)[:, None] + back
            valid = at >= starts[chosen, None]
            observations, actions = (x[at.clamp(min=0)][None] for x in parts)
            valid = valid[None].to(observations.dtype)
            hidden = network.hidden(observations, actions, valid, wanted=slice(-1, None))
            return network.rewards(hidden).squeeze(-1)

        learned = in_pieces(of_rows, len(rows.observations), piece)
        return combined(self.cfg, learned.unflatten(0, (-1, self.cfg.members)))


def _to_members(x: Tensor, members: int) -> Tensor:
    """Reshapes `(S, M * B, ...)` to `(S * M, B, ...)`."""
    return x.unflatten(1, (members, -1)).flatten(0, 1)


build = iql.IQL


def parts(agent: iql.IQL, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated, and the learned reward."""
    of_reward = replace(spec, rngs=seeding.generators(spec.identities, "reward"))
    reward = RewardModel(agent.cfg.reward, of_reward, spec.facts["length"])
    return {"policy": agent.act, "reward": reward}


def facts(cfg: Config, dataset: Dataset) -> dict[str, Any]:
    """Returns the length of the compared segments."""
    return {"length": cfg.preferences.length}


def train(cfg: Config, run: Run) -> None:
    policy_steps = run.cfg.policy_steps()
    limit = cfg.reward.clip_actions
    compared = loading.comparisons(run, cfg.preferences, limit, rankings=True)
    rows, buffer, normalizer = relabelling.transitions(run, cfg.data, cfg.batch_size)
    at_once = min(cfg.reward.batch_size, len(compared))
    members = cfg.reward.members
    pairs = PairBuffer(compared, run.seeds, members * at_once, run.device)
    last_tenth = pairs.last(max(1, len(pairs) // 10))
    look_every = 5 * (len(pairs) // cfg.reward.batch_size + 1)
    spec = run.spec(buffer, normalizer, policy_steps, {"length": pairs.length})
    agent = iql.IQL(cfg, spec)
    reward = parts(agent, spec)["reward"]
    places = members * reward.network.places
    keys = transformer.dropout_keys(run.seeds, places, run.device, "reward dropout")
    dropout = run.dropout(cfg, cfg.batch_size)
    fit = compile.captured(reward.update, run.mode)
    update = compile.captured(agent.update, run.mode)
    state = {"reward": reward, "pairs": pairs, "keys": keys, "agent": agent, "buffer": buffer}
    for step in run.steps(**state, dropout=dropout):
        if step <= cfg.reward.steps:
            metrics = fit(pairs.sample(), keys.next())
            last = step == cfg.reward.steps
            if cfg.reward.keep == "best" and (last or step % look_every == 0):
                reward.look(last_tenth)
            if last:
                learned = reward.rewards(rows), rows.episode_ends
                buffer.rewards.copy_(relabelling.scaled(*learned, cfg.data, cfg.spread_worst))
        else:
            metrics = update(buffer.sample(), dropout and dropout.next())
        run.log(step, metrics)
        if step > cfg.reward.steps:
            run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
