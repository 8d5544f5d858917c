"""MR.Q: Model-based Representations for Q-learning (Fujimoto, D'Oro, Zhang, Tian and Rabbat 2025,
arXiv:2501.16142).

TD3 on features that a model learns: an encoder of states and one of states and actions are trained so
that the reward, the next state's features and the end are linear in the latter's output, unrolled over
five steps. Values and policy see these features only, and pass no gradient to them. Returns of three
steps, prioritised replay, and values on the scale of the mean reward's size make one set of settings do.

    python algos/mrq.py task=gym/Pendulum-v1 steps=5000 algo.hidden_width=64
    corerl train algo=mrq task=gym/HalfCheetah-v4 steps=1000000 seeds=5

What differs from the paper and from the authors' code (facebookresearch/MRQ at 8a44a7d, non-commercial:
read for facts, nothing is copied), and its switch.

    item               paper              authors                           ours              switch
 1  inputs             vectors, images;   as the paper                      vectors           -
                       discrete actions
 2  copy of targets    every 250 updates  before updates 1, 251, ..., with  the authors'      target_every
                                          as many of the encoders
 3  scale of rewards   -                  their mean size, with a zero for  without zeros     -
                                          each episode's end
 4  sum of n rewards   all                without a terminal step's         the paper's       terminal_reward
 5  begins a piece     -                  a step with 5 after it in its     the authors'      horizon
                                          episode, or before a terminal
 6  initial weights    -                  Glorot's times sqrt(2), outputs   the authors'      -
                                          too; biases 0
 7  LayerNorm          -                  before activations, no scale or   the authors'      -
                                          shift; states' features end so
 8  priorities         -                  max(larger |error|, 1) ** 0.4; a  the authors'      priority_power
                                          new step's is the largest ever
 9  values' loss       -                  mean over both critics, their     the authors'      max_norm
                                          gradient cut to 20
10  policy             -                  follows the updated values, the   the authors'      -
                                          mean of both
11  weight decay       -                  of all parameters                 the authors'      weight_decay
12  random beginning   10,000 steps       less one per episode              the paper's       random_steps
13  end in the loss    -                  once a terminal was stored        so, by seed       -
14  replay at update   -                  with the newest step              before that step  -
15  step drawn twice   -                  one of its priorities, on a GPU   the larger        -
                                          any

In a piece that begins with a terminal step, the authors' sum has the next episode's first reward (4).
Without that step's reward a goal that ends its episode is never seen: configs/mrq.yaml leaves it out only
on the environments of the authors' curves. An update reads what the replay held before the step that it
goes with (14), so that a GPU learns while the simulators run.
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corerl.buffers.prioritized import Pieces, PrioritizedReplay
from corerl.config import Settings, at_least, positive, require, within
from corerl.nn import compile, networks, optim
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.two_hot import symexp_bins, two_hot
from corerl.training.environments import Environments
from corerl.training.run import Run

LOSSES = ("dynamics_loss", "reward_loss", "end_loss")


@dataclass
class Config(Settings):
    name: str = "mrq"
    label: str = "MR.Q"

    horizon: int = positive(5)  # steps over which the model is unrolled
    dynamics_weight: float = at_least(0, 1.0)  # weight of predicted features in the encoders' loss
    reward_weight: float = at_least(0, 0.1)  # weight of predicted rewards in the encoders' loss
    end_weight: float = at_least(0, 0.1)  # weight of predicted episode ends in the encoders' loss
    reward_bins: int = at_least(2, 65)  # number of bins over which the model predicts the reward
    reward_limit: float = positive(10.0)  # largest reward bin, as log(1 + reward)

    discount: float = within(0.99, "[0, 1]")
    n_step: int = positive(3)  # number of rewards summed before the bootstrap
    terminal_reward: bool = True  # n-step sums include a terminal step's reward (authors: no)
    target_every: int = positive(250)  # updates between target copies, with as many encoder updates
    target_noise: float = at_least(0, 0.2)  # standard deviation of the noise on the target action
    target_clip: float = at_least(0, 0.3)  # bound at which noise on the target action is clipped
    flatness: float = at_least(0, 1e-5)  # weight of squared pre-tanh outputs in the policy's loss
    priority_power: float = at_least(0, 0.4)  # exponent of the TD error in replay priorities
    smallest_priority: float = at_least(0, 1.0)  # floor of |TD error| in priorities (0: no floor)

    random_steps: int = positive(10_000)  # number of first steps, random and without updates
    noise: float = at_least(0, 0.2)  # standard deviation of the exploration noise
    capacity: int = positive(1_000_000)  # environment steps kept per seed

    encoder_lr: float = positive(1e-4)
    policy_lr: float = positive(3e-4)
    critic_lr: float = positive(3e-4)
    weight_decay: float = at_least(0, 1e-4)  # weight decay of all networks
    max_norm: float = positive(20.0)  # norm at which the critics' gradient is clipped
    batch_size: int = positive(256)
    hidden_width: int = positive(512)  # width of every network, and number of state features
    action_width: int = positive(256)  # number of action features

    def __post_init__(self):
        super().__post_init__()
        require(
            min(self.random_steps, self.capacity) > self.span,
            f"algo.random_steps={self.random_steps} and algo.capacity={self.capacity} must be above "
            f"{self.span}, the larger of algo.horizon and algo.n_step",
        )

    @property
    def span(self) -> int:
        """Steps of the longest piece."""
        return max(self.horizon, self.n_step)


INIT = networks.xavier(math.sqrt(2))
MLP = functools.partial(
    networks.MLP, init=INIT, layer_norm=1e-5, norm_first=True, plain_norm=True, activation=F.elu
)


class Encoder(nn.Module):
    """Features of states, of states and actions, and the linear model on the latter.

    Inputs are `(S, ..., features)` with one batch axis.
    """

    def __init__(self, cfg: Config, observation_dim: int, action_dim: int, rngs):
        super().__init__()
        lead, width = (len(rngs),), cfg.hidden_width
        self.state = MLP([observation_dim, width, width, width], lead, rngs)
        self.norm = networks.PlainLayerNorm()
        self.action = networks.Linear(action_dim, cfg.action_width, lead, rngs, INIT)
        self.both = MLP([width + cfg.action_width, width, width, width], lead, rngs)
        self.model = networks.Linear(width, 1 + width + cfg.reward_bins, lead, rngs, INIT)
        self.outputs = [1, width, cfg.reward_bins]

    def forward(self, observations: Tensor) -> Tensor:
        """Returns z_s `(S, B, width)`."""
        return F.elu(self.norm(self.state(observations)))

    def join(self, features: Tensor, actions: Tensor) -> Tensor:
        """Returns z_sa `(S, B, width)` of z_s and actions."""
        return self.both(torch.cat([features, F.elu(self.action(actions))], -1))

    def predict(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Predicts the end `(S, B)`, the next z_s, and the logits of the reward's bins `(S, B, bins)`."""
        end, features, reward = self.model(joined).split(self.outputs, -1)
        return end.squeeze(-1), features, reward


class MRQ(Stateful):
    """MR.Q agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg = cfg
        lead, rngs, device, width = spec.lead, spec.rngs, spec.device, cfg.hidden_width
        encoder = Encoder(cfg, spec.observation_dim, spec.action_dim, rngs)
        policy = MLP([width, width, width, spec.action_dim], lead, rngs, activation=F.relu)
        critic = MLP([width, width, width, width, 1], (*lead, 2), rngs)
        self.encoder, self.policy, self.critic = (x.to(device) for x in (encoder, policy, critic))
        self.targets = nn.ModuleList(optim.target_of(x) for x in self._online())
        # Of the last copy: the rewards' size now and in the targets, and the encoders' last losses.
        sizes, losses = torch.ones(spec.seeds), torch.zeros(spec.seeds, len(LOSSES))
        last = networks.Buffers(scale=sizes, target_scale=sizes.clone(), losses=losses)
        self.since = last.to(device)
        rates = (cfg.encoder_lr, cfg.policy_lr, cfg.critic_lr)
        optimizers = [
            optim.Adam(x.parameters(), lr, weight_decay=cfg.weight_decay)
            for x, lr in zip(self._online(), rates, strict=True)
        ]
        self.encoder_optimizer, self.policy_optimizer, self.critic_optimizer = optimizers
        self._bins = symexp_bins(cfg.reward_limit, cfg.reward_bins, device)
        adam = self.critic_optimizer
        self._encoder_step = GradientStep(self.encoder_loss, self.encoder_optimizer, spec.mode)
        self._policy_step = GradientStep(self.policy_loss, self.policy_optimizer, spec.mode)
        self._critic_step = GradientStep(self.critic_loss, adam, spec.mode, max_norm=cfg.max_norm)

    def _online(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return self.encoder, self.policy, self.critic

    # Losses. Fields of pieces are (S, B, ...), noise is (S, B, A), terminals (S,); each loss is (S,).

    def encoder_loss(self, pieces: Pieces, terminals: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Sums errors of next features, rewards and ends along `horizon` predicted steps.

        `terminals` is 1 where a seed has seen one, and 0 elsewhere: there the end does not count.
        """
        cfg = self.cfg
        with torch.no_grad():
            following = pieces.next_observations
            targets = self.targets[0](following.flatten(1, 2)).unflatten(1, following.shape[1:3])
            shares = two_hot(pieces.rewards, self._bins)
        features = self.encoder(pieces.observations)
        losses = {name: [] for name in LOSSES}
        for k in range(cfg.horizon):
            joined = self.encoder.join(features, pieces.actions[:, :, k])
            end, features, logits = self.encoder.predict(joined)
            errors = (
                (features - targets[:, :, k]).square().mean(-1),
                -(shares[:, :, k] * logits.log_softmax(-1)).sum(-1),
                (end - pieces.terminated[..., k]).square(),
            )
            for steps, error in zip(losses.values(), errors, strict=True):
                steps.append((pieces.counted[..., k] * error).mean(-1))
        losses = {name: torch.stack(steps).sum(0) for name, steps in losses.items()}
        dynamics, reward, end = losses.values()
        loss = cfg.dynamics_weight * dynamics + cfg.reward_weight * reward
        return loss + cfg.end_weight * terminals * end, losses

    def critic_loss(self, pieces: Pieces, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Pulls both critics to the return of the piece and min Q' after it, over the rewards' scale."""
        y = self.target_value(pieces, noise)
        with torch.no_grad():
            joined = self.encoder.join(self.encoder(pieces.observations), pieces.actions[:, :, 0])
        q = self.critic(joined[:, None]).squeeze(-1)
        errors = q - y[:, None]
        loss = F.huber_loss(q, y[:, None].expand_as(q), reduction="none").mean((1, 2))
        largest = errors.detach().abs().amax(1)
        priorities = largest.clamp(min=self.cfg.smallest_priority) ** self.cfg.priority_power
        value = q.mean((1, 2)) * self.since.scale
        return loss, {"critic_loss": loss, "q": value, "priorities": priorities}

    @torch.no_grad()
    def target_value(self, pieces: Pieces, noise: Tensor) -> Tensor:
        """Returns (r + ... + discount ** n * old scale * min Q'(s', a')) / scale, `(S, B)`."""
        cfg, (encoder, policy, critic) = self.cfg, self.targets
        count = pieces.counted.sum(-1, keepdim=True)
        powers = cfg.discount ** torch.arange(cfg.n_step, device=count.device)
        summed = pieces.counted if cfg.terminal_reward else pieces.counted * (1 - pieces.terminated)
        returns = (summed * powers * pieces.rewards).sum(-1)
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
        """Returns -mean Q at the policy's own actions, which stay off the flat ends of tanh."""
        with torch.no_grad():
            features = self.encoder(observations)
        raw = self.policy(features)
        q = self.critic(self.encoder.join(features, torch.tanh(raw))[:, None]).mean((1, 2, 3))
        loss = self.cfg.flatness * raw.square().mean((1, 2)) - q
        return loss, {"policy_loss": loss}

    # One step of everything that an environment step goes with, and what follows a copy.

    def update(self, pieces: Pieces, noise: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Steps the critics, then the policy. Also returns the new priorities `(S, B)`."""
        metrics = self._critic_step(pieces, noise)
        priorities = metrics.pop("priorities")
        metrics |= self._policy_step(pieces.observations)
        model = dict(zip(LOSSES, self.since.losses.unbind(1), strict=True))
        return metrics | model, priorities

    def update_encoder(self, pieces: Pieces, terminals: Tensor) -> None:
        """Steps the encoders."""
        metrics = self._encoder_step(pieces, terminals)
        self.since.losses.copy_(torch.stack([metrics[name] for name in LOSSES], 1))

    def copy_targets(self, size: Tensor) -> None:
        """Makes all targets equal to their networks, and `size` (S,) the scale of rewards."""
        for target, online in zip(self.targets, self._online(), strict=True):
            optim.polyak(target, online, 1.0)
        self.since.target_scale.copy_(self.since.scale)
        self.since.scale.copy_(size.clamp(min=1e-8))

    @torch.no_grad()
    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Returns a noisy action, `(S, n, O)` and normal noise `(S, n, A)` to `(S, n, A)`."""
        return (self.act(observations) + self.cfg.noise * noise).clamp(-1, 1)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the policy's action at raw observations, `(S, n, O) -> (S, n, A)`."""
        return torch.tanh(self.policy(self.encoder(observations)))


build = MRQ


def train(cfg: Config, run: Run) -> None:
    envs = Environments(run.task.make_env, run.seeds, run.device)
    agent = MRQ(cfg, run.spec(envs))
    sizes = (envs.observation_dim, envs.action_dim)
    capacity = max(min(cfg.capacity, run.cfg.steps), cfg.span + 1)
    rows = (capacity, run.seeds, cfg.batch_size, run.device)
    first = cfg.smallest_priority or 1.0
    replay = PrioritizedReplay(*sizes, *rows, horizon=cfg.span, priority=first)
    noise = run.normal("noise", cfg.batch_size, envs.action_dim)
    exploration = run.normal("exploration", 1, envs.action_dim)
    uniform = run.uniform("random actions", 1, envs.action_dim)
    update = compile.captured(agent.update, run.mode)
    update_encoder = compile.captured(agent.update_encoder, run.mode)
    explore = compile.captured(agent.explore, run.mode)
    state = {"agent": agent, "envs": envs, "replay": replay}
    state |= {"noise": noise, "exploration": exploration, "uniform": uniform}
    for step in run.steps(**state):
        updates = step - cfg.random_steps
        actions = 2 * uniform.next() - 1
        if updates > 0:
            actions = explore(envs.look(), exploration.next())
        actions = envs.receive(actions)  # on the host before the update: see difference 14
        if updates > 0:
            if updates == 1:
                replay.require_ready(run.task.id)
            if updates % cfg.target_every == 1 % cfg.target_every:
                agent.copy_targets(replay.mean_size())
                for _ in range(cfg.target_every):
                    update_encoder(replay.sample_pieces(cfg.horizon)[0], replay.terminated)
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
