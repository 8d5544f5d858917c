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

Differences, each with its reason:
 1. Trajectories are the dataset's episodes. The authors' script cuts D4RL's transitions every 1,000 rows,
    whatever ends there, and drops the rest, so that its returns-to-go run across falls and into the next
    episode: `trajectories=blocks`. Both leave out the last step of a timed-out episode, as D4RL does.
    `trajectories=segments` (ours) learns from the compared segments alone, where no dataset lies beside
    the labels: each is a trajectory from step 0 on, since its place in its episode is not known.
 2. A window's target for Q ends at its last step T: the rewards before T, and at T the value of the policy's
    action, or 0 where T is terminal (code). So the reward of T itself is in no target of that window.
 3. The policy's Q term is -mean Q_a / mean |Q_b|, with a, b the critics in a random order and Q_b at the
    same actions (code); the paper divides by the mean of |Q| over the data.
 4. The paper's loss also predicts states; the code does so in a mode that its command leaves off. Left out.
 5. `select=softmax`: 50 candidates, ten for each of five returns asked for, all but five with noise on the
    last return-to-go; one is drawn in proportion to exp(Q) (code). `select=argmax`: the best of five (paper).
 6. The return-to-go falls by 1/1000 of the return asked for at every step, whatever is earned (code).
 7. The target policy keeps its dropout (code); for the first 1,000 updates it is the untrained one (code).
 8. Every seed learns its own reward. The authors learned one, with seed 999, for all: `reward.seed=999`.
    Members draw comparisons with replacement, where the authors shuffle them anew for every epoch.
 9. Weight decay is part of the gradient (torch's Adam, code), added after clipping.
10. A seed's candidates carry the same noise at every evaluation, so that a resumed run scores alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.algos import dt
from corerl.config import require
from corerl.nn import compile, networks, optim, transformer
from corerl.nn.learner import Stateful
from corerl.preferences import loading, relabelling
from corerl.preferences.relabelling import RewardedWindows
from corerl.preferences.reward_models import Markov, ensemble_mean, markov
from corerl.preferences.sources import Preferences
from corerl.training import preprocessing
from corerl.training.run import Run

ASKED = (0.5, 0.75, 1.0, 1.5, 2.0)
"""Returns to ask for, as shares of the best in the data."""


@dataclass
class Config:
    name: str = "dtr"
    label: str = "DTR"

    reward: Markov = field(default_factory=Markov)
    ensemble_normalization: bool = True  # each member's rewards to mean 0, deviation 1
    preferences: Preferences = field(default_factory=Preferences)
    trajectories: str = "episodes"  # episodes | blocks of 1,000 rows (authors' script) | segments
    clip_actions: float = 0.999  # dataset actions are clipped to plus-minus this

    eta: float = 1.0  # largest weight of Q against imitation, reached at the last step
    bc_coef: float = 1.0  # weight of imitation
    discount: float = 0.99
    polyak: float = 0.005  # share of the new critics in their targets, every update
    ema: float = 0.005  # share of the new policy in its target
    ema_every: int = 5  # updates
    ema_start: int = 1_000  # updates before which the target policy stays as it began

    context: int = 20  # K steps, three tokens each
    return_scale: float = 10.0  # returns-to-go are divided by it
    max_timestep: int = 1000  # size of the time table; and how slowly a return-to-go is used up
    layers: int = 4
    heads: int = 4
    width: int = 256
    critic_layers: int = 3
    activation: str = "relu"  # of the transformer; the critics have Mish
    dropout: float = 0.1
    init: str = "official"  # of the transformer, see algos/dt.py

    lr: float = 3e-4  # of policy and critics
    lr_every: int = 1_000  # updates between two rates; they fall to 0 along half a cosine
    weight_decay: float = 1e-4  # of the policy
    max_grad_norm: float = 9.0  # of the policy, and of the critics
    batch_size: int = 256

    select: str = "softmax"  # softmax (authors) | argmax (paper)
    repeats: int = 10  # candidates per return asked for, with softmax
    return_noise: float = 0.1  # deviation of the noise on their last, scaled return-to-go

    def __post_init__(self):
        dt.check(self)
        for name in ("critic_layers", "ema_every", "lr_every", "repeats"):
            require(getattr(self, name) > 0, f"algo.{name}={getattr(self, name)} must be positive")
        for name in ("eta", "bc_coef", "weight_decay", "return_noise", "ema_start"):
            value = getattr(self, name)
            require(value >= 0, f"algo.{name}={value} must not be negative")
        for name in ("discount", "clip_actions"):
            value = getattr(self, name)
            require(0 < value <= 1, f"algo.{name}={value} must lie in (0, 1]")
        require(self.context > 1, f"algo.context={self.context} must be at least 2")
        choices = {
            "trajectories": ("episodes", "blocks", "segments"),
            "select": ("softmax", "argmax"),
        }
        for name, known in choices.items():
            value = getattr(self, name)
            require(value in known, f"algo.{name}={value} is not one of {', '.join(known)}")


class DTR(Stateful):
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed.

    `steps` is the number of updates to come, over which the weight of Q grows and the rates fall.
    """

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        steps: int,
        normalizer: networks.Normalizer | None = None,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg, self._steps = cfg, steps
        self.transformer = dt.Transformer(cfg, observation_dim, action_dim, rngs).to(device)
        sizes = [observation_dim + action_dim, *[cfg.width] * cfg.critic_layers, 1]
        self.critic = networks.MLP(sizes, (len(rngs), 2), rngs, activation=F.mish).to(device)
        self.target_transformer = optim.target_of(self.transformer)
        self.target_critic = optim.target_of(self.critic)
        self.normalizer = normalizer or nn.Identity()
        self.best_return = networks.Scalar(0.0, len(rngs)).to(device).requires_grad_(False)

        self.policy_optimizer = optim.Adam(self.transformer.parameters(), cfg.lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        factor = optim.in_rounds(optim.cosine(max(1, steps // cfg.lr_every)), cfg.lr_every)
        self.policy_schedule = optim.Schedule(self.policy_optimizer, factor)
        self.critic_schedule = optim.Schedule(self.critic_optimizer, factor)
        self.clock = optim.Clock(device)
        self._critic_gradients = compile.gradients(
            self.critic_loss, self.critic_optimizer.parameters, mode
        )
        self._policy_gradients = compile.gradients(
            self.policy_loss, self.policy_optimizer.parameters, mode
        )

    # Losses. Fields of windows are (S, B, K, ...); each loss is (S,).

    def critic_loss(
        self, windows: RewardedWindows, keys: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Both critics at all steps but the last, towards the rewards on the way and the value there."""
        y = self.targets(windows, keys)
        inputs = torch.cat([windows.observations, windows.actions], -1)[:, :, :-1]
        error = (self._q(self.critic, inputs) - y[:, None, :, :-1]).square()
        valid = windows.valid[:, None, :, :-1]
        per_critic = (error * valid).sum((2, 3)) / valid.sum((2, 3)).clamp(min=1)
        loss = per_critic.sum(1)
        return loss, {"critic_loss": loss}

    @torch.no_grad()
    def targets(self, windows: RewardedWindows, keys: Tensor | None) -> Tensor:
        """`(S, B, K)`: the discounted r_i to r_(T-1), and discount^(T-i) (1 - d_T) Q'(s_T, a')."""
        next_action = self.target_transformer(windows, keys)[:, :, -1]
        last = torch.cat([windows.observations[:, :, -1], next_action], -1)
        value = self._q(self.target_critic, last[:, :, None]).amin(1)  # (S, B, 1)
        steps = torch.arange(windows.rewards.shape[-1], device=value.device)
        ahead = steps[:, None] - steps  # j - i, with j down and i across
        powers = self.cfg.discount ** ahead.clamp(min=0).to(value.dtype)
        sums = windows.rewards[..., :-1] @ (powers * (ahead >= 0))[:-1]
        bootstrap = (1 - windows.terminated[..., -1:]) * value
        return sums + powers[-1] * bootstrap

    def policy_loss(
        self, windows: RewardedWindows, keys: Tensor | None, order: Tensor, progress: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Imitation, and Q of the policy's own actions with a weight that grows from 0 to eta."""
        actions = self.transformer(windows, keys)
        valid, count = windows.valid, windows.valid.sum((1, 2))
        bc_loss = ((actions - windows.actions).square().mean(-1) * valid).sum((1, 2)) / count
        q = self._q(self.critic, torch.cat([windows.observations, actions], -1))
        q = torch.where(order.view(-1, 1, 1, 1) > 0.5, q, q.flip(1)) * valid[:, None]
        size = q[:, 1].detach().abs().sum((1, 2)) / count
        q_loss = -q[:, 0].sum((1, 2)) / count / size
        loss = self.cfg.bc_coef * bc_loss + self.cfg.eta * progress * q_loss
        return loss, {"bc_loss": bc_loss, "q_loss": q_loss, "q": size}

    def _q(self, critic: nn.Module, inputs: Tensor) -> Tensor:
        """Both critics, `(S, B, K, O + A)` to `(S, 2, B, K)`."""
        q = critic(inputs.flatten(1, 2)[:, None]).squeeze(-1)
        return q.unflatten(-1, inputs.shape[1:3])

    def update(
        self, windows: RewardedWindows, keys: Tensor | None, order: Tensor
    ) -> dict[str, Tensor]:
        """One step of both. `keys` drop units in the target policy, then in the policy, `(S, 2 * places)`;
        `order` `(S, 1)`, uniform on [0, 1), says which critic comes first."""
        cfg = self.cfg
        for_target, for_policy = (None, None) if keys is None else keys.chunk(2, 1)
        grads, metrics = self._critic_gradients(windows, for_target)
        self.critic_optimizer.step(optim.clip_per_seed(grads, cfg.max_grad_norm))
        progress = self.clock.count / self._steps
        grads, more = self._policy_gradients(windows, for_policy, order, progress)
        grads = optim.clip_per_seed(grads, cfg.max_grad_norm)
        with torch.no_grad():
            parameters = self.policy_optimizer.parameters
            grads = torch._foreach_add(grads, parameters, alpha=cfg.weight_decay)
        self.policy_optimizer.step(grads)
        self.policy_schedule.step()
        self.critic_schedule.step()
        count = self.clock.count
        now = (count > cfg.ema_start) & (count % cfg.ema_every == 0)
        optim.polyak_where(now, self.target_transformer, self.transformer, cfg.ema)
        optim.polyak(self.target_critic, self.critic, cfg.polyak)
        self.clock.step()
        return metrics | more


class Player:
    """Acts in n episodes of each seed at once, asking for multiples of the best return in the data.

    A step's candidates are the policy's actions under several returns-to-go; the target critics choose.
    """

    def __init__(self, agent: DTR, seeds: Sequence[int]):
        self.agent, self.seeds = agent, list(seeds)

    def begin(self, seeds: int, episodes: int) -> None:
        """Forgets everything, and asks for the returns again."""
        agent, cfg, asked = self.agent, self.agent.cfg, len(ASKED)
        self._recent = agent.transformer.recent((seeds, episodes * asked), cfg.context)
        best = agent.best_return().view(-1, 1, 1) / cfg.return_scale
        self._first = (best * torch.tensor(ASKED).to(best)).expand(seeds, episodes, -1)
        self._step = 0
        self._rngs = seeding.generators(self.seeds, "candidates", best.device)

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        """The action at raw observations, `(S, n, O) -> (S, n, A)`."""
        agent, asked = self.agent, len(ASKED)
        states = agent.normalizer(observations)
        to_go = self._first * (1 - self._step / agent.cfg.max_timestep)
        windows = self._recent.see(states.repeat_interleave(asked, 1), to_go.flatten(1))
        candidates = agent.transformer.branches(windows, self._last_returns(to_go).flatten(1, 2))
        candidates = candidates.unflatten(1, to_go.shape[1:]).flatten(2, 3)  # (S, n, C, A)
        inputs = torch.cat([states[:, :, None].expand(*candidates.shape[:3], -1), candidates], -1)
        q = agent._q(agent.target_critic, inputs).amin(1)
        chosen = self._choose(q)[..., None, None].expand(*q.shape[:2], 1, candidates.shape[-1])
        actions = candidates.gather(2, chosen).squeeze(2)
        self._recent.did(actions.repeat_interleave(asked, 1))
        self._step += 1
        return actions

    def _last_returns(self, to_go: Tensor) -> Tensor:
        """Of R candidates for each of five returns-to-go `(S, n, 5)`: `(S, n, 5, R)`."""
        cfg = self.agent.cfg
        if cfg.select == "argmax":
            return to_go[..., None]
        _, episodes, asked = to_go.shape
        noise = self._draw(torch.randn, (episodes, asked * cfg.repeats)) * cfg.return_noise
        noise[..., :asked] = 0
        return to_go[..., None] + noise.unflatten(-1, (asked, cfg.repeats))

    def _choose(self, q: Tensor) -> Tensor:
        """Numbers `(S, n)` of candidates with values `(S, n, C)`."""
        if self.agent.cfg.select == "argmax":
            return q.argmax(-1)
        below = torch.softmax(q, -1).cumsum(-1) < self._draw(torch.rand, (q.shape[1], 1))
        return below.sum(-1).clamp(max=q.shape[-1] - 1)

    def _draw(self, kind, shape: Sequence[int]) -> Tensor:
        options = {"device": self._first.device, "dtype": self._first.dtype}
        return torch.stack([kind(*shape, generator=rng, **options) for rng in self._rngs])

    def reward(self, rewards: Tensor) -> None:
        """What is asked for does not depend on what was earned."""


def train(cfg: Config, run: Run) -> None:
    policy_steps = run.cfg.steps - cfg.reward.steps
    require(
        policy_steps > 0,
        f"algo.reward.steps={cfg.reward.steps} leaves none of steps={run.cfg.steps}",
    )
    compared = loading.comparisons(run, cfg.preferences, cfg.clip_actions)
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
    agent = DTR(
        cfg,
        buffer.observation_dim,
        buffer.action_dim,
        run.rngs(),
        steps=policy_steps,
        normalizer=normalizer,
        device=run.device,
        mode=run.mode,
    )
    keys = transformer.dropout_keys(run.seeds, 2 * agent.transformer.places, run.device)
    order = seeding.uniform(run.seeds, "order", (1,), run.device)
    player = Player(agent, run.seeds)
    fit = compile.captured(reward.update, run.mode)
    update = compile.captured(agent.update, run.mode)
    parts = {"reward": reward, "pairs": pairs, "agent": agent, "buffer": buffer}
    for step in run.steps(**parts, keys=keys, order=order):
        if step <= cfg.reward.steps:
            metrics = fit(pairs.sample())
            if step == cfg.reward.steps:
                members = reward.rewards(rows.observations, rows.actions)
                buffer.relabel(ensemble_mean(members, cfg.ensemble_normalization))
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
