"""DTR: In-Dataset Trajectory Return Regularization (Tu et al. 2025, AAAI, arXiv:2412.09104).

Offline RL from comparisons. A reward learned from segments is wrong step by step, and TD-learning adds its
errors up; so a Decision Transformer, which trusts only returns that occur in the data, is the policy, and a
critic pulls its actions towards better ones, harder as training goes on. Rewards are the mean of an ensemble,
each member's normalised over the dataset.

    python algos/dtr.py task=corerl/pendulum steps=3000 algo.reward.steps=1000 eval.episodes=10
    corerl train algo=dtr task=d4rl/hopper-medium-replay-v2 seeds=5

Of `steps`, the first `reward.steps` fit the reward; then the dataset is relabelled, and the others train the
policy. The default is the authors' code (TU2021/DTR at 5993fdc, on QT's), which made the scores; we read
the paper's text without its appendix.

What differs, and its switch:

    item          paper       authors' code                      ours                            switch
 1  trajectories  episodes    rows in blocks of 1,000, across    episodes; a timed-out one       trajectories
                              ends; the rest dropped             without its last step, as D4RL  =blocks
    without data  -           -                                  each compared segment from 0    =segments
 2  target for Q  -           ends at the last step T: rewards   code's                          -
                              before T, then Q'(s_T, pi) or 0
 3  Q's scale     mean |Q|    mean |Q_b|, critics in random      code's                          -
                  of the data order, at the same actions
 4  states        predicted   off in its command                 left out                        -
 5  selection     best of 5   one of 50 by exp(Q); noise on the  code's                          select
                              last return but for five
 6  target return -           falls by 1/1000 of it at each step code's                          max_timestep
 7  target policy -           keeps its dropout; untrained for   code's                          ema_start
                              the first 1,000 updates
 8  reward        -           one, seed 999, shuffled epochs     each seed its own, drawn with   reward.seed
                                                                 replacement
 9  weight decay  -           in the gradient, after clipping    code's                          weight_decay
10  candidates    -           noise anew                         same noise at every evaluation, -
                                                                 so that resume scores alike
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl import seeding
from corerl.algos import dt
from corerl.config import at_least, group, one_of, positive, require, within
from corerl.nn import compile, networks, optim, transformer
from corerl.nn.critics import Critics, q_of_windows
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.preferences import loading, relabelling
from corerl.preferences.relabelling import RewardedWindows
from corerl.preferences.reward_models import Markov, ensemble_mean, markov, unfitted
from corerl.preferences.sources import Preferences
from corerl.training import preprocessing
from corerl.training.run import Run

TARGETS = (0.5, 0.75, 1.0, 1.5, 2.0)
"""Target returns, as shares of the best in the data."""


@dataclass
class Config(transformer.TransformerSettings):
    name: str = "dtr"
    label: str = "DTR"

    reward: Markov = group(Markov)
    ensemble_normalization: bool = True  # gives each member's rewards mean 0, standard deviation 1
    preferences: Preferences = group(Preferences)
    trajectories: str = one_of(  # episodes | blocks (1,000 rows, authors) | segments (compared)
        "episodes", "blocks", "segments"
    )
    clip_actions: float = within(0.999, "(0, 1]")  # dataset actions are clipped to +- this number

    eta: float = at_least(0, 1.0)  # final weight of Q against imitation (it rises from 0)
    bc_coef: float = at_least(0, 1.0)  # weight of imitation in the policy's loss
    discount: float = within(0.99, "(0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, every update
    ema: float = within(0.005, "[0, 1]")  # share of new weights in the target policy, per update
    ema_every: int = positive(5)  # updates between updates of the target policy
    ema_start: int = at_least(0, 1_000)  # updates before the first update of the target policy

    context: int = at_least(2, 20)  # K, steps that the transformer sees (three tokens each)
    return_scale: float = positive(10.0)  # returns-to-go are divided by this
    max_timestep: int = positive(1000)  # size of time embedding, steps until target returns are 0
    layers: int = positive(4)  # transformer blocks
    heads: int = positive(4)  # attention heads per block
    width: int = positive(256)  # size of a token and of critic layers
    critic_layers: int = positive(3)  # hidden layers of the critics
    activation: str = one_of("relu", "gelu")  # relu | gelu in the transformer (critics use Mish)
    dropout: float = within(0.1, "[0, 1)")  # dropout of embeddings, attention and block outputs
    init: str = one_of("official", "corl")  # transformer's initial weights, official (DT's) | corl

    lr: float = positive(3e-4)  # learning rate of policy and critics
    lr_every: int = positive(1_000)  # updates between steps of the learning rate's cosine decay
    weight_decay: float = at_least(0, 1e-4)  # weight decay of the policy
    max_grad_norm: float = positive(9.0)  # largest gradient norm, of policy and of critics
    batch_size: int = positive(256)

    select: str = one_of("softmax", "argmax")  # softmax (drawn by exp Q, authors) | argmax (paper)
    repeats: int = positive(10)  # candidate actions per target return (select=softmax)
    return_noise: float = at_least(0, 0.1)  # std of noise on the last return-to-go (select=softmax)

    def __post_init__(self):
        super().__post_init__()
        require(
            not self.reward.prior,
            f"algo.reward.prior={self.reward.prior} needs a world model, which dtr lacks. Use "
            "algo=pref_iql or algo=pebble, or set algo.reward.prior=0",
        )

    def first_phase(self) -> tuple[int, str]:
        return self.reward.steps, "algo.reward.steps"


class DTR(Stateful):
    """DTR agents of S seeds. Over `spec.steps` updates the weight of Q grows and the rates fall."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self._steps = cfg, spec.steps
        O, A, rngs, device = spec.observation_dim, spec.action_dim, spec.rngs, spec.device
        self.transformer = dt.Transformer(cfg, O, A, rngs).to(device)
        sizes = [O, A, *[cfg.width] * cfg.critic_layers]
        self.critic = Critics(sizes, rngs, activation=F.mish).to(device)
        self.target_transformer = optim.target_of(self.transformer)
        self.target_critic = optim.target_of(self.critic)
        self.normalizer = spec.normalizer
        self.best_return = networks.Scalar(0.0, spec.seeds).to(device).requires_grad_(False)

        self.policy_optimizer = optim.Adam(self.transformer.parameters(), cfg.lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        # A broken last round counts, whose rate would be 0 otherwise.
        rounds = max(1, math.ceil(spec.steps / cfg.lr_every))
        factor = optim.in_rounds(optim.cosine(rounds), cfg.lr_every)
        self.policy_schedule = optim.Schedule(self.policy_optimizer, factor)
        self.critic_schedule = optim.Schedule(self.critic_optimizer, factor)
        self.clock = optim.Clock(device)
        self._critic_step = GradientStep(
            self.critic_loss,
            self.critic_optimizer,
            spec.mode,
            self.critic_schedule,
            cfg.max_grad_norm,
        )
        self._policy_step = GradientStep(
            self.policy_loss, self.policy_optimizer, spec.mode, self.policy_schedule
        )

    # Losses. Fields of windows are (S, B, K, ...); each loss is (S,).

    def critic_loss(
        self, windows: RewardedWindows, keys: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Regresses both critics at all steps but the last towards the rewards until it and its value."""
        y = self.targets(windows, keys)
        before_last = windows.observations[:, :, :-1], windows.actions[:, :, :-1]
        error = (q_of_windows(self.critic, *before_last) - y[:, None, :, :-1]).square()
        valid = windows.valid[:, None, :, :-1]
        per_critic = (error * valid).sum((2, 3)) / valid.sum((2, 3)).clamp(min=1)
        loss = per_critic.sum(1)
        return loss, {"critic_loss": loss}

    @torch.no_grad()
    def targets(self, windows: RewardedWindows, keys: Tensor | None) -> Tensor:
        """Sums the discounted r_i to r_(T-1) and discount^(T-i) (1 - d_T) Q'(s_T, a'), `(S, B, K)`."""
        next_action = self.target_transformer(windows, keys)[:, :, -1]
        value = self.target_critic(windows.observations[:, :, -1], next_action).amin(1)[..., None]
        steps = torch.arange(windows.rewards.shape[-1], device=value.device)
        ahead = steps[:, None] - steps  # j - i, with j down and i across
        powers = self.cfg.discount ** ahead.clamp(min=0).to(value.dtype)
        sums = windows.rewards[..., :-1] @ (powers * (ahead >= 0))[:-1]
        bootstrap = (1 - windows.terminated[..., -1:]) * value
        return sums + powers[-1] * bootstrap

    def policy_loss(
        self, windows: RewardedWindows, keys: Tensor | None, order: Tensor, progress: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds imitation, and Q of the policy's own actions with a weight that grows from 0 to eta."""
        actions = self.transformer(windows, keys)
        valid, count = windows.valid, windows.valid.sum((1, 2))
        bc_loss = ((actions - windows.actions).square().mean(-1) * valid).sum((1, 2)) / count
        q = q_of_windows(self.critic, windows.observations, actions)
        q = torch.where(order.view(-1, 1, 1, 1) > 0.5, q, q.flip(1)) * valid[:, None]
        size = q[:, 1].detach().abs().sum((1, 2)) / count
        q_loss = -q[:, 0].sum((1, 2)) / count / size
        loss = self.cfg.bc_coef * bc_loss + self.cfg.eta * progress * q_loss
        return loss, {"bc_loss": bc_loss, "q_loss": q_loss, "q": size}

    def update(
        self, windows: RewardedWindows, keys: Tensor | None, order: Tensor
    ) -> dict[str, Tensor]:
        """Takes one step of both. `keys` `(S, 2 * places)` drop units, in the target policy first.
        `order` `(S, 1)`, uniform on [0, 1), says which critic comes first."""
        cfg = self.cfg
        for_target, for_policy = (None, None) if keys is None else keys.chunk(2, 1)
        metrics = self._critic_step(windows, for_target)
        progress = self.clock.count / self._steps
        grads, policy_metrics = self._policy_step.gradients(windows, for_policy, order, progress)
        grads = optim.clip_per_seed(grads, cfg.max_grad_norm)
        with torch.no_grad():
            parameters = self.policy_optimizer.parameters
            grads = torch._foreach_add(grads, parameters, alpha=cfg.weight_decay)
        self._policy_step.apply(grads)
        count = self.clock.count
        now = (count > cfg.ema_start) & (count % cfg.ema_every == 0)
        optim.polyak_where(now, self.target_transformer, self.transformer, cfg.ema)
        optim.polyak(self.target_critic, self.critic, cfg.polyak)
        self.clock.step()
        return metrics | policy_metrics


class DTRPlayer:
    """A policy in n episodes of each seed at once that asks for multiples of the best return in the data.

    A step's candidates are the policy's actions under several returns-to-go; the target critics choose.
    """

    def __init__(self, agent: DTR, seeds: Sequence[int]):
        self.agent, self.seeds = agent, list(seeds)

    def begin(self, seeds: int, episodes: int) -> None:
        """Forgets everything, and asks for the returns again."""
        agent, cfg, targets = self.agent, self.agent.cfg, len(TARGETS)
        self._context = agent.transformer.context((seeds, episodes * targets), cfg.context)
        best = agent.best_return().view(-1, 1, 1) / cfg.return_scale
        self._first = (best * torch.tensor(TARGETS).to(best)).expand(seeds, episodes, -1)
        self._step = 0
        self._rngs = seeding.generators(self.seeds, "candidates", best.device)

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        """Returns the action at raw observations, `(S, n, O) -> (S, n, A)`."""
        agent, targets = self.agent, len(TARGETS)
        states = agent.normalizer(observations)
        to_go = self._first * (1 - self._step / agent.cfg.max_timestep)
        windows = self._context.observe(states.repeat_interleave(targets, 1), to_go.flatten(1))
        candidates = agent.transformer.branches(windows, self._last_returns(to_go).flatten(1, 2))
        candidates = candidates.unflatten(1, to_go.shape[1:]).flatten(2, 3)  # (S, n, C, A)
        states = states[:, :, None].expand(*candidates.shape[:3], -1)
        q = q_of_windows(agent.target_critic, states, candidates).amin(1)
        chosen = self._choose(q)[..., None, None].expand(*q.shape[:2], 1, candidates.shape[-1])
        actions = candidates.gather(2, chosen).squeeze(2)
        self._context.record_actions(actions.repeat_interleave(targets, 1))
        self._step += 1
        return actions

    def _last_returns(self, to_go: Tensor) -> Tensor:
        """Returns the R last returns-to-go for each of five asked for `(S, n, 5)`: `(S, n, 5, R)`."""
        cfg = self.agent.cfg
        if cfg.select == "argmax":
            return to_go[..., None]
        _, episodes, targets = to_go.shape
        noise = self._draw(torch.randn, (episodes, targets * cfg.repeats)) * cfg.return_noise
        noise[..., :targets] = 0
        return to_go[..., None] + noise.unflatten(-1, (targets, cfg.repeats))

    def _choose(self, q: Tensor) -> Tensor:
        """Chooses candidates by their values `(S, n, C)` and returns their numbers `(S, n)`."""
        if self.agent.cfg.select == "argmax":
            return q.argmax(-1)
        below = torch.softmax(q, -1).cumsum(-1) < self._draw(torch.rand, (q.shape[1], 1))
        return below.sum(-1).clamp(max=q.shape[-1] - 1)

    def _draw(self, kind, shape: Sequence[int]) -> Tensor:
        options = {"device": self._first.device, "dtype": self._first.dtype}
        return torch.stack([kind(*shape, generator=rng, **options) for rng in self._rngs])

    def reward(self, rewards: Tensor) -> None:
        """Does nothing: target returns do not depend on what was earned."""


build = DTR


def parts(agent: DTR, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated, and the learned reward."""
    return {"policy": DTRPlayer(agent, spec.identities), "reward": unfitted(agent.cfg.reward, spec)}


def train(cfg: Config, run: Run) -> None:
    policy_steps = run.cfg.policy_steps()
    compared = loading.comparisons(run, cfg.preferences, cfg.clip_actions, rankings=True)
    if cfg.trajectories == "segments":
        rows = pieces = relabelling.compared_rows(compared)
    else:
        rows = relabelling.rows_of(preprocessing.vectors(run), cfg.clip_actions)
        pieces = rows if cfg.trajectories == "episodes" else relabelling.blocks(rows)
    buffer, normalizer = relabelling.sequences(
        run,
        pieces,
        cfg.batch_size,
        cfg.context,
        return_scale=cfg.return_scale,
        last_timestep=cfg.max_timestep - 1,
    )
    reward, pairs = markov(run, cfg.reward, compared)
    agent = DTR(cfg, run.spec(buffer, normalizer, policy_steps))
    keys = transformer.dropout_keys(run.seeds, 2 * agent.transformer.places, run.device)
    order = run.uniform("order", 1)
    player = DTRPlayer(agent, run.seeds)
    fit = compile.captured(reward.update, run.mode)
    update = compile.captured(agent.update, run.mode)
    state = {"reward": reward, "pairs": pairs, "agent": agent, "buffer": buffer}
    for step in run.steps(**state, keys=keys, order=order):
        if step <= cfg.reward.steps:
            metrics = fit(pairs.sample())
            if step == cfg.reward.steps:
                members = reward.rewards(rows.observations, rows.actions)
                rewards = ensemble_mean(members, cfg.ensemble_normalization)
                if cfg.reward.ensemble != "mean":
                    rewards = reward.combined(members)
                buffer.relabel(rewards)
                agent.best_return.value.copy_(buffer.episode_returns().amax(1))
        else:
            metrics = update(buffer.sample(), keys.next(), order.next())
        run.log(step, metrics)
        if step > cfg.reward.steps:
            run.evaluate(step, player)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
