"""CPL on ranked segments: what its authors ran on D4RL (Hejna et al. 2024, arXiv:2310.13639).

A few hundred labels of people are too few to clone from, so they are spread over the dataset first: a
preference model, DPPO's (An et al. 2023, arXiv:2301.12842), learns them and scores a segment at every row.
Then every batch ranks its segments, and CPL's loss stands on all their pairs,

    L = mean over i < j of -log [ exp A_j / (exp A_j + exp b A_i) ],

where the segment j scores more than i, A = mean over t of log pi(a_t|s_t) / temperature, and
log pi(a|s) = -|(pi(s) - a) / 2|^2.

    corerl train algo=cpl_ranked task=d4rl/hopper-medium-replay-v2 seeds=5
    python algos/cpl_ranked.py task=corerl/pendulum steps=4000 algo.ranked_by=teacher algo.length=64 seeds=3

Of `steps`, the first `score.steps` fit the model; then all segments are scored, and the others are CPL's.
With ranked_by=teacher a scripted teacher scores them, by the return or by regret
(`algo.preferences.judge`), and no labels are needed: the authors' dense setting on MetaWorld (mode `rank`,
label `rl_sum`), whose algorithm is otherwise algo=cpl.

The authors' code is jhejna/cpl-human at 936809b, DPPO's is snu-mllab/DPPO at bce1756; neither paper could be
read beyond its abstract, so that the equations are our reading of that code.

    item             their README        their code                   ours                        switch
 1  policy           probabilistic       deterministic: the flag      deterministic               -
                                         `probabilistic` is
                                         not passed on
 2  cloning first    -                   none; with bc_steps it       none                        -
                                         would not start
 3  smoothness of    DPPO's nu and m     off by default; nu and m     left out: no file names     -
    the scores       per dataset         per dataset are in no file   them
 4  pairs            -                   all but those whose loss     all                         -
                                         rounds to 0
 5  equal scores     -                   as argsort leaves them       in the order of the batch   -
 6  batch            -                   segments without             with replacement            -
                                         replacement
 7  labels' batch    -                   permutation, anew per epoch  with replacement; fewer     -
                                                                      labels than a batch are one
 8  short segments   -                   where an episode begins;     the same                    -
                                         padding has a share in the
                                         model's mean
 9  episodes' ends   -                   by comparing states          true ones, on the rows      -
                                                                      that D4RL keeps
10  dropout masks    -                   one for both segments of a   one for each                -
                                         comparison
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl import seeding
from corerl.config import Settings, at_least, group, one_of, positive, require, within
from corerl.nn import compile, networks, optim, transformer
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.preferences import loading, relabelling, segments, teachers
from corerl.preferences.buffer import PairBuffer, Pairs
from corerl.preferences.comparisons import Comparisons
from corerl.preferences.relabelling import Rows
from corerl.preferences.reward_models import in_pieces, preference_loss
from corerl.preferences.reward_transformer import Fitting, RewardTransformer
from corerl.preferences.segments import SegmentBuffer, Segments
from corerl.preferences.sources import Preferences
from corerl.training import preprocessing
from corerl.training.run import Run


@dataclass
class Score(Fitting):
    """The preference model and how it is fitted."""

    prefix: ClassVar[str] = "algo.score."
    attention: ClassVar[bool] = False  # without it, a small head scores each state's token


@dataclass
class Ranked(Settings):
    """Settings of policies from ranked segments, CPL's and DPPO's."""

    length: int = positive(100)  # steps in each ranked segment of the dataset
    ranked_by: str = one_of("model", "teacher")  # model (learned from labels) | teacher (scripted)
    score: Score = group(Score)
    preferences: Preferences = group(Preferences)

    lr: float = positive(3e-4)
    batch_size: int = positive(256)  # segments per batch (all their pairs are compared)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    dropout: float = within(0.25, "[0, 1)")  # dropout rate in the policy
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, clip_actions=1 - 1e-5)

    def __post_init__(self):
        super().__post_init__()
        judged = self.preferences
        require(
            self.ranked_by == "model" or judged.source == "teacher",
            f"algo.ranked_by=teacher does not work with algo.preferences.source={judged.source}. Set "
            "algo.preferences.source=teacher",
        )
        reason = (
            "segments are ranked by their scores, so the scale of the dataset's rewards does not "
            "matter"
        )
        loading.refuse(self.data, *loading.REWARDS, reason=reason)
        faults = (judged.beta is not None, judged.epsilon, judged.skip, judged.equal)
        weighs = judged.gamma < 1 or judged.discount < 1
        require(
            self.ranked_by == "model" or not (any(faults) or weighs),
            "algo.ranked_by=teacher uses only algo.preferences.judge and .values. Leave the other settings "
            "of the teacher out",
        )

    def first_phase(self) -> tuple[int, str]:
        return self.score.steps if self.ranked_by == "model" else 0, "algo.score.steps"


@dataclass
class Config(Ranked):
    name: str = "cpl_ranked"
    label: str = "CPL (ranked)"

    temperature: float = positive(0.1)  # a segment's advantage is its mean log pi divided by this
    bias: float = within(0.7, "(0, 1]")  # b, factor of the lower segment's score (1: no bias)


class PreferenceModel(Stateful):
    """S learners of a score for whole segments of up to `length` steps.

    Attention goes both ways, and a segment's score is the mean over its L states' tokens.
    """

    def __init__(self, cfg: Score, spec: Spec, length: int):
        self.cfg = cfg
        sizes = spec.observation_dim, spec.action_dim
        network = RewardTransformer(cfg, *sizes, spec.rngs, length)
        self.network = network.to(spec.device)
        self.optimizer = optim.Adam(network.parameters(), cfg.lr, weight_decay=cfg.weight_decay)
        self.schedule = optim.Schedule(self.optimizer, optim.rise_and_fall(cfg.steps, cfg.warmup))
        self._step = GradientStep(self.loss, self.optimizer, spec.mode, self.schedule)

    def loss(self, pairs: Pairs, keys: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the labels' cross-entropy. `keys` are for dropout."""
        observations, actions = pairs.observations.flatten(1, 2), pairs.actions.flatten(1, 2)
        scores = self(observations, actions, torch.ones_like(observations[..., 0]), keys)
        loss, accuracy = preference_loss(scores.unflatten(1, (-1, 2)), pairs.labels)
        return loss, {"score_loss": loss, "score_accuracy": accuracy}

    def __call__(
        self, observations: Tensor, actions: Tensor, valid: Tensor, keys: Tensor | None = None
    ) -> Tensor:
        """Scores `(S, n)` of segments `(S, n, L, ...)`. Padding counts in the mean over L (authors)."""
        hidden = self.network.hidden(observations, actions, valid, keys, causal=False)
        return self.network.rewards(hidden).mean(-1)

    def update(self, pairs: Pairs, keys: Tensor | None) -> dict[str, Tensor]:
        """Takes one step."""
        return self._step(pairs, keys)

    @torch.no_grad()
    def scores(self, buffer: SegmentBuffer, piece: int = 256) -> Tensor:
        """Scores every segment of the buffer, `(S, N)`."""
        device = buffer.scores.device

        def of_rows(chosen: slice) -> Tensor:
            rows = torch.arange(chosen.start, chosen.stop, device=device)[None]
            taken = buffer.take(rows)
            return self(taken.observations, taken.actions, taken.valid)

        return in_pieces(of_rows, len(buffer), piece)


class RankedCPL(Stateful):
    """Ranked CPL agents of S seeds, trained together."""

    def __init__(self, cfg: Ranked, spec: Spec):
        self.cfg = cfg
        sizes = [spec.observation_dim, *[cfg.hidden_width] * cfg.hidden_layers, spec.action_dim]
        policy = networks.MLP(sizes, spec.lead, spec.rngs, init=networks.orthogonal())
        self.policy = policy.to(spec.device)
        self.normalizer = spec.normalizer
        self.optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        self._step = GradientStep(self.loss, self.optimizer, spec.mode)

    def loss(self, batch: Segments, keys: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the contrastive loss on all pairs of the batch. `keys` (S, layers) are for dropout."""
        log_prob = self._log_prob(batch, keys)
        steps = batch.valid.sum(-1)
        total = (log_prob * batch.valid).sum(-1)
        advantage = total / steps / self.cfg.temperature
        ranked = advantage.gather(1, batch.scores.argsort(dim=1, stable=True))
        lower, higher = ranked[:, :, None], ranked[:, None]
        pairs = ranked.shape[1] * (ranked.shape[1] - 1) / 2
        loss = F.softplus(self.cfg.bias * lower - higher).triu(1).sum((1, 2)) / pairs
        right = (higher > lower).to(loss.dtype).triu(1).sum((1, 2)) / pairs
        mean = total.sum(1) / steps.sum(1)
        return loss, {"cpl_loss": loss, "accuracy": right, "log_prob": mean}

    def _log_prob(self, batch: Segments, keys: Tensor | None) -> Tensor:
        """Returns -|(pi(s) - a) / 2|^2, `(S, B, L)`."""
        return -self.difference(batch, keys).square().sum(-1)

    def difference(self, batch: Segments, keys: Tensor | None) -> Tensor:
        """Returns (pi(s) - a) / 2, `(S, B, L, A)`: actions are two wide."""
        observations, actions = batch.observations.flatten(1, 2), batch.actions.flatten(1, 2)
        shape = (observations.shape[1], self.cfg.hidden_width)
        keep = transformer.multipliers(keys, shape, self.cfg.dropout)
        difference = (torch.tanh(self.policy(observations, keep)) - actions) / 2
        return difference.view(batch.actions.shape)

    def update(self, batch: Segments, keys: Tensor | None = None) -> dict[str, Tensor]:
        """Takes one step."""
        return self._step(batch, keys)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the action at raw observations, `(S, n, O) -> (S, n, A)`."""
        return torch.tanh(self.policy(self.normalizer(observations)))


def teacher_scores(run: Run, cfg: Ranked, rows: Rows) -> Tensor:
    """Returns the sum that a scripted teacher judges by, of the segment that ends at each row: `(N,)`."""
    dataset = preprocessing.vectors(run).ended_by(cfg.data.end_reward)
    worth = teachers.worth(dataset, cfg.preferences)[dataset.transitions().rows]
    return torch.from_numpy(segments.sums(worth, segments.first_rows(rows, cfg.length)))


def _check_length(cfg: Ranked, compared: Comparisons) -> None:
    require(
        cfg.length <= compared.length,
        f"algo.length={cfg.length} must be at most {compared.length}, because the labels compare segments "
        f"of {compared.length} steps",
    )


build = RankedCPL


def train(cfg: Ranked, run: Run, build: type = RankedCPL) -> None:
    of_model, _ = cfg.first_phase()
    policy_steps = run.cfg.policy_steps()
    require(
        cfg.batch_size > 1,
        f"algo.batch_size={cfg.batch_size} must be at least 2, because one segment cannot be ranked",
    )
    limit = cfg.data.clip_actions
    compared = loading.comparisons(run, cfg.preferences, limit) if of_model else None
    rows, _, normalizer = relabelling.transitions(run, cfg.data, cfg.batch_size)
    seen = rows._replace(observations=normalizer.of_array(rows.observations))
    buffer = SegmentBuffer(seen, run.seeds, cfg.batch_size, cfg.length, run.device)
    spec = run.spec(buffer, normalizer, policy_steps)
    agent = build(cfg, spec)
    parts = {"agent": agent, "buffer": buffer}
    if of_model:
        _check_length(cfg, compared)
        compared, _ = loading.prepared(run, compared, cfg.data, normalizer)
        at_once = min(cfg.score.batch_size, len(compared))
        pairs = PairBuffer(compared, run.seeds, at_once, run.device)
        of_score = replace(spec, rngs=seeding.generators(run.seeds, "score"))
        model = PreferenceModel(cfg.score, of_score, max(cfg.length, pairs.length))
        places = model.network.places
        model_keys = transformer.dropout_keys(run.seeds, places, run.device, "score dropout")
        parts |= {"score": model, "pairs": pairs, "model_keys": model_keys}
        fit = compile.captured(model.update, run.mode)
    else:
        buffer.scores.copy_(teacher_scores(run, cfg, rows))
    keys = None
    if cfg.dropout:
        keys = transformer.dropout_keys(run.seeds, cfg.hidden_layers, run.device)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(**parts, keys=keys):
        if step <= of_model:
            metrics = fit(pairs.sample(), model_keys.next())
            if step == of_model:
                buffer.scores.copy_(model.scores(buffer))
        else:
            metrics = update(buffer.sample(), keys and keys.next())
        run.log(step, metrics)
        if step > of_model:
            run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
