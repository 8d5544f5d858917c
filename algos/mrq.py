"""MR.Q: Model-based Representations for Q-learning (Fujimoto, D'Oro, Zhang, Tian and Rabbat 2025,
arXiv:2501.16142).

TD3 on features that a model learns: an encoder of states and one of states and actions are trained so
that the reward, the next state's features and the end are linear in the latter's output, unrolled over
five steps. Values and policy see these features only, and pass no gradient to them. Returns of three
steps, prioritised replay, and values on the scale of the mean reward's size make one set of settings do.

    python algos/mrq.py task=gym/Pendulum-v1 steps=5000 algo.hidden_width=64
    corerl train algo=mrq task=gym/HalfCheetah-v4 steps=1000000 seeds=5

Differences. Written from the paper's description and a summary of its settings; the authors' code
(facebookresearch/MRQ, non-commercial) was not read, so that what they leave open is our reading.
 1. Only vectors of state and continuous actions; the paper also has images and numbered actions.
 2. Targets are copied before the 1st, 251st, ... update, and `target_every` updates of the encoders follow
    at once; between copies only values and policy learn (paper). The scale of the rewards is taken
    over the replay then, and the old scale is the one of the copied values.
 3. The end counts in the encoders' loss for seeds that have met a terminal (paper).
 4. A piece of experience ends with its episode or with the newest step, and a return goes on from the state
    reached there, unless that is terminal. Errors of an unrolled step are averaged over the batch, those
    past the end being 0, and summed over the steps.
 5. Rewards are told by 65 bins, symexp of even steps from -10 to 10; a reward between two of them counts
    for both by its distance.
 6. The policy follows the updated values, by the mean of both; priorities are max(|error|, 1) ** 0.4 of the
    larger of both errors; new steps get the largest since the last copy.
 7. Every normalisation has a scale and a shift, and stands before the activation; also the encoder of
    states ends with both, that of states and actions with neither.
 8. All three optimisers decay weights, and the critics' gradient alone is clipped (per seed).
 9. An update reads what the replay held before the step that it goes with, so that a GPU learns while
    the simulators run.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl import seeding
from corerl.buffers.prioritized import Pieces, PrioritisedReplay
from corerl.config import require
from corerl.nn import compile, networks, optim
from corerl.nn.learner import Stateful
from corerl.training.environments import Environments
from corerl.training.run import Run

LOSSES = ("dynamics_loss", "reward_loss", "end_loss")


@dataclass
class Config:
    name: str = "mrq"
    label: str = "MR.Q"

    horizon: int = 5  # steps over which the model is unrolled
    dynamics_weight: float = 1.0
    reward_weight: float = 0.1
    end_weight: float = 0.1
    reward_bins: int = 65
    reward_limit: float = 10.0  # of the bins, before symexp

    discount: float = 0.99
    n_step: int = 3  # rewards summed before the bootstrap
    target_every: int = 250  # updates between copies, and updates of the encoders at each
    target_noise: float = 0.2  # standard deviation, on the target policy's actions
    target_clip: float = 0.3
    flatness: float = 1e-5  # weight of the policy's squared outputs before tanh
    priority_power: float = 0.4
    smallest_priority: float = 1.0

    random_steps: int = 10_000  # first steps of each seed, with uniform actions and no update
    noise: float = 0.2  # standard deviation of exploration
    capacity: int = 1_000_000  # steps kept per seed

    encoder_lr: float = 1e-4
    policy_lr: float = 3e-4
    critic_lr: float = 3e-4
    weight_decay: float = 1e-4
    max_norm: float = 20.0  # of the critics' gradient
    batch_size: int = 256
    hidden_width: int = 512  # of every network, and how many features a state has
    action_width: int = 256  # features of an action

    def __post_init__(self):
        for name in ("horizon", "n_step", "target_every", "random_steps", "capacity"):
            value = getattr(self, name)
            require(value > 0, f"algo.{name}={value} must be positive")
        require(self.reward_bins > 1, f"algo.reward_bins={self.reward_bins} must be at least 2")
        require(self.reward_limit > 0, f"algo.reward_limit={self.reward_limit} must be positive")
        require(self.max_norm > 0, f"algo.max_norm={self.max_norm} must be positive")
        for name in ("noise", "target_noise", "target_clip", "flatness", "smallest_priority"):
            value = getattr(self, name)
            require(value >= 0, f"algo.{name}={value} must not be negative")


def _mlp(sizes: list[int], lead: tuple[int, ...], rngs, activation=F.elu) -> networks.MLP:
    return networks.MLP(
        sizes,
        lead,
        rngs,
        init=networks.xavier(),
        layer_norm=1e-5,
        norm_first=True,
        activation=activation,
    )


class Encoder(nn.Module):
    """Features of states, of states and actions, and the linear model on the latter.

    Inputs are `(S, ..., features)` with one batch axis.
    """

    def __init__(self, cfg: Config, observation_dim: int, action_dim: int, rngs):
        super().__init__()
        lead, width = (len(rngs),), cfg.hidden_width
        self.state = _mlp([observation_dim, width, width, width], lead, rngs)
        self.norm = networks.LayerNorm(width, lead)
        xavier = networks.xavier()
        self.action = networks.Linear(action_dim, cfg.action_width, lead, rngs, xavier)
        self.both = _mlp([width + cfg.action_width, width, width, width], lead, rngs)
        self.model = networks.Linear(width, 1 + width + cfg.reward_bins, lead, rngs, xavier)
        self.outputs = [1, width, cfg.reward_bins]

    def forward(self, observations: Tensor) -> Tensor:
        """z_s `(S, B, width)`."""
        return F.elu(self.norm(self.state(observations)))

    def join(self, features: Tensor, actions: Tensor) -> Tensor:
        """z_sa `(S, B, width)` of z_s and actions."""
        return self.both(torch.cat([features, F.elu(self.action(actions))], -1))

    def predict(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The end `(S, B)`, the next z_s, and the logits of the reward's bins `(S, B, bins)`."""
        end, features, reward = self.model(joined).split(self.outputs, -1)
        return end.squeeze(-1), features, reward


class Since(nn.Module):
    """What the last copy of the targets left behind, per seed.

    The mean size of rewards by which values are divided, now and in the target critics, `(S,)`, and the
    encoders' last losses `(S, 3)`.
    """

    def __init__(self, seeds: int):
        super().__init__()
        self.register_buffer("scale", torch.ones(seeds))
        self.register_buffer("target_scale", torch.ones(seeds))
        self.register_buffer("losses", torch.zeros(seeds, len(LOSSES)))


class MRQ(Stateful):
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed."""

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg = cfg
        lead, width = (len(rngs),), cfg.hidden_width
        encoder = Encoder(cfg, observation_dim, action_dim, rngs)
        policy = _mlp([width, width, width, action_dim], lead, rngs, F.relu)
        critic = _mlp([width, width, width, width, 1], (*lead, 2), rngs)
        self.encoder, self.policy, self.critic = (x.to(device) for x in (encoder, policy, critic))
        self.targets = nn.ModuleList(optim.target_of(x) for x in self._online())
        self.since = Since(len(rngs)).to(device)
        rates = (cfg.encoder_lr, cfg.policy_lr, cfg.critic_lr)
        optimizers = [
            optim.Adam(x.parameters(), lr, weight_decay=cfg.weight_decay)
            for x, lr in zip(self._online(), rates, strict=True)
        ]
        self.encoder_optimizer, self.policy_optimizer, self.critic_optimizer = optimizers
        steps = torch.linspace(-cfg.reward_limit, cfg.reward_limit, cfg.reward_bins, device=device)
        self.bins = steps.sign() * torch.expm1(steps.abs())
        losses = (self.encoder_loss, self.policy_loss, self.critic_loss)
        self._encoder_gradients, self._policy_gradients, self._critic_gradients = (
            compile.gradients(loss, optimizer.parameters, mode)
            for loss, optimizer in zip(losses, optimizers, strict=True)
        )

    def _online(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return self.encoder, self.policy, self.critic

    # Losses. Fields of pieces are (S, B, ...), noise is (S, B, A), met (S,); each loss is (S,).

    def encoder_loss(self, pieces: Pieces, met: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Errors of next features, rewards and ends along `horizon` predicted steps; `met` weighs the end."""
        cfg = self.cfg
        with torch.no_grad():
            after = pieces.next_observations
            goals = self.targets[0](after.flatten(1, 2)).unflatten(1, after.shape[1:3])
            shares = self.two_hot(pieces.rewards)
        features = self.encoder(pieces.observations)
        losses = {name: [] for name in LOSSES}
        for k in range(cfg.horizon):
            joined = self.encoder.join(features, pieces.actions[:, :, k])
            end, features, logits = self.encoder.predict(joined)
            errors = (
                (features - goals[:, :, k]).square().mean(-1),
                -(shares[:, :, k] * logits.log_softmax(-1)).sum(-1),
                (end - pieces.terminated[..., k]).square(),
            )
            for steps, error in zip(losses.values(), errors, strict=True):
                steps.append((pieces.counted[..., k] * error).mean(-1))
        losses = {name: torch.stack(steps).sum(0) for name, steps in losses.items()}
        dynamics, reward, end = losses.values()
        loss = cfg.dynamics_weight * dynamics + cfg.reward_weight * reward
        return loss + cfg.end_weight * met * end, losses

    def critic_loss(self, pieces: Pieces, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Both critics towards the return of the piece and min Q' after it, all over the rewards' scale."""
        y = self.goal(pieces, noise)
        with torch.no_grad():
            joined = self.encoder.join(self.encoder(pieces.observations), pieces.actions[:, :, 0])
        q = self.critic(joined[:, None]).squeeze(-1)
        errors = q - y[:, None]
        loss = F.huber_loss(q, y[:, None].expand_as(q), reduction="none").mean(-1).sum(1)
        largest = errors.detach().abs().amax(1)
        priorities = largest.clamp(min=self.cfg.smallest_priority) ** self.cfg.priority_power
        value = q.mean((1, 2)) * self.since.scale
        return loss, {"critic_loss": loss, "q": value, "priorities": priorities}

    @torch.no_grad()
    def goal(self, pieces: Pieces, noise: Tensor) -> Tensor:
        """(r + ... + discount ** n * old scale * min Q'(s', a')) / scale, `(S, B)`."""
        cfg, (encoder, policy, critic) = self.cfg, self.targets
        count = pieces.counted.sum(-1, keepdim=True)
        powers = cfg.discount ** torch.arange(cfg.n_step, device=count.device)
        returns = (pieces.counted * powers * pieces.rewards).sum(-1)
        last = (count.long() - 1)[..., None].expand(-1, -1, 1, pieces.next_observations.shape[-1])
        features = encoder(pieces.next_observations.gather(2, last).squeeze(2))
        spread = (cfg.target_noise * noise).clamp(-cfg.target_clip, cfg.target_clip)
        actions = (torch.tanh(policy(features)) + spread).clamp(-1, 1)
        q = critic(encoder.join(features, actions)[:, None]).squeeze(-1).amin(1)
        ended = (pieces.counted * pieces.terminated).amax(-1)
        ahead = (
            (1 - ended) * cfg.discount ** count.squeeze(-1) * self.since.target_scale[:, None] * q
        )
        return (returns + ahead) / self.since.scale[:, None]

    def policy_loss(self, observations: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """-mean Q at the policy's own actions, which stay off the flat ends of tanh."""
        with torch.no_grad():
            features = self.encoder(observations)
        raw = self.policy(features)
        q = self.critic(self.encoder.join(features, torch.tanh(raw))[:, None]).mean((1, 2, 3))
        loss = self.cfg.flatness * raw.square().mean((1, 2)) - q
        return loss, {"policy_loss": loss}

    def two_hot(self, rewards: Tensor) -> Tensor:
        """The shares `(..., bins)` of the two bins around each reward."""
        inside = rewards.clamp(self.bins[0], self.bins[-1])
        upper = torch.searchsorted(self.bins, inside.contiguous()).clamp(1, len(self.bins) - 1)
        low, high = self.bins[upper - 1], self.bins[upper]
        share = ((inside - low) / (high - low))[..., None]
        numbers, upper = torch.arange(len(self.bins), device=upper.device), upper[..., None]
        return torch.where(numbers == upper, share, torch.where(numbers == upper - 1, 1 - share, 0))

    # One step of everything that an environment step goes with, and what follows a copy.

    def update(self, pieces: Pieces, noise: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """One step of the critics, then of the policy; also the new priorities `(S, B)`."""
        grads, metrics = self._critic_gradients(pieces, noise)
        self.critic_optimizer.step(optim.clip_per_seed(grads, self.cfg.max_norm))
        priorities = metrics.pop("priorities")
        grads, more = self._policy_gradients(pieces.observations)
        self.policy_optimizer.step(grads)
        model = dict(zip(LOSSES, self.since.losses.unbind(1), strict=True))
        return metrics | more | model, priorities

    def represent(self, pieces: Pieces, met: Tensor) -> None:
        """One step of the encoders."""
        grads, metrics = self._encoder_gradients(pieces, met)
        self.encoder_optimizer.step(grads)
        self.since.losses.copy_(torch.stack([metrics[name] for name in LOSSES], 1))

    def copy_targets(self, size: Tensor) -> None:
        """Makes all targets equal to their networks, and `size` (S,) the scale of rewards."""
        for target, online in zip(self.targets, self._online(), strict=True):
            optim.polyak(target, online, 1.0)
        self.since.target_scale.copy_(self.since.scale)
        self.since.scale.copy_(size.clamp(min=1e-8))

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """A noisy action, `(S, n, O)` and normal noise `(S, n, A)` to `(S, n, A)`."""
        return (self.act(observations) + self.cfg.noise * noise).clamp(-1, 1)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The policy's action at raw observations, `(S, n, O) -> (S, n, A)`."""
        return torch.tanh(self.policy(self.encoder(observations)))


def train(cfg: Config, run: Run) -> None:
    envs = Environments(run.task.make_env, run.seeds, run.device)
    sizes = (envs.observation_dim, envs.action_dim)
    agent = MRQ(cfg, *sizes, run.rngs(), device=run.device, mode=run.mode)
    capacity = min(cfg.capacity, run.cfg.steps)
    replay = PrioritisedReplay(*sizes, capacity, run.seeds, cfg.batch_size, run.device)
    shape = (cfg.batch_size, envs.action_dim)
    noise = seeding.normal(run.seeds, "noise", shape, run.device)
    exploration = seeding.normal(run.seeds, "exploration", (1, envs.action_dim), run.device)
    uniform = seeding.uniform(run.seeds, "random actions", (1, envs.action_dim), run.device)
    update = compile.captured(agent.update, run.mode)
    represent = compile.captured(agent.represent, run.mode)
    state = {"agent": agent, "envs": envs, "replay": replay}
    state |= {"noise": noise, "exploration": exploration, "uniform": uniform}
    for step in run.steps(**state):
        updates = step - cfg.random_steps
        actions = 2 * uniform.next() - 1
        if updates > 0:
            actions = agent.explore(envs.look(), exploration.next())
        actions = actions.cpu()  # on the host before the update is queued: see difference 9
        if updates > 0:
            if updates % cfg.target_every == 1 % cfg.target_every:
                agent.copy_targets(replay.mean_size())
                replay.forget_largest()
                for _ in range(cfg.target_every):
                    represent(replay.sample_pieces(cfg.horizon)[0], replay.terminated)
            pieces, places = replay.sample_pieces(cfg.n_step)
            metrics, priorities = update(pieces, noise.next())
            replay.prioritise(places, priorities)
            run.log(step, metrics | {"episode_return": envs.episode_returns})
        replay.add(envs.step(actions))
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
