"""ARSQ: Auto-Regressive Soft Q-learning (Liu et al. 2025, arXiv:2502.00288).

Soft Q-learning without an actor: an action is a sequence of choices among B bins, dimension after
dimension and level after level, and Q is a state value plus the sum of one soft advantage per choice
given those before it. As exp(A / alpha) of every choice sums to 1, V is the soft maximum of Q over all
actions and the policy is a product of softmaxes, so that neither a next action nor a maximum is needed.

    python algos/arsq.py task=corerl/pendulum steps=4000
    corerl train algo=arsq task=d4rl/hopper-medium-replay-v2 seeds=5

`steps` are those of the environment, of which the first draws on the dataset alone; phase=offline makes
them updates on the data, and phase=both begins with `online.pretrain_steps` of those.

Differences. Of the paper we know its abstract and summaries; the authors' code is their D4RL release as a
later project carries it (mihir-chauhan/CQN-AS-Franka at fe90e72, ARSQ-main/d4rl), where settings are too.
 1. The temporal-difference loss is a square, halved in the paper and not in the code, as here.
 2. The behaviour loss is a margin in the paper; the code's default, and five of its nine data sets, have
    the logarithm of a sum of exponentials over the bins that were not taken: `behaviour=margin|lse`.
 3. It is averaged over demonstrations (D4RL); the authors' RLBench code divides by all rows instead:
    `behaviour_mean=batch`.
 4. Demonstrations are the dataset, whatever its quality, and half of each batch (authors). The other half
    comes from a replay of `online.capacity` rows that began as the dataset, worst episode first, and so
    loses the worst first (authors); `online.offline_ratio` mixes in a fixed proportion instead.
 5. The environment makes a step, and then `utd` updates follow; the authors make an episode and then as
    many. An update reads what the replay held before its step, so that a GPU learns while simulators run.
 6. Each of the L * D heads is computed for its own context only, which the authors gather from all pairs.
 7. The smaller of the two normalised advantages acts, and the softmax normalises it anew (authors). One
    uniform number per choice picks the bin. `act_with=target` is the authors' RLBench.
 8. The evaluated action is the best bin of each choice in turn, not of all jointly (authors).
 9. The authors relabel good episodes as demonstrations only where asked to, and then compare a sum of
    rewards with a mean; left out, as are their ablations (bias network, networks per element, stale
    contexts), their upper clip of 1e7, and the encoders and networks of RLBench.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.nn import bins, compile, networks, optim
from corerl.nn.bins import Bins
from corerl.nn.learner import Stateful
from corerl.training import demonstrations, preprocessing
from corerl.training.demonstrations import Demos, Rows
from corerl.training.offline_to_online import Online, Phases, check
from corerl.training.run import Run


@dataclass
class Config:
    name: str = "arsq"
    label: str = "ARSQ"

    levels: int = 1  # L
    bins: int = 41  # B, of every level
    alpha: float = 0.1  # temperature of the soft advantages and of the policy
    bellman_weight: float = 1.0
    behaviour: str = "lse"  # lse | margin
    behaviour_weight: float = 5.0
    behaviour_floor: float = -1.0  # differences below this count as it; minus the margin
    behaviour_temperature: float = 1.0  # of lse
    behaviour_mean: str = "demos"  # demos | batch: what the loss is divided by

    utd: int = 1  # updates per step of the environment
    discount: float = 0.99
    polyak: float = 0.005  # share of the new networks in their targets
    act_with: str = "online"  # online | target

    lr: float = 3e-4
    batch_size: int = 256  # rows of experience, beside the demonstrations
    demos: Demos = field(default_factory=Demos)
    hidden_layers: int = 3
    hidden_width: int = 512
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(clip_actions=1 - 1e-5)
    )

    phase: str = "online"  # online | both: after updates on the data | offline: those alone
    online: Online = field(default_factory=Online)

    def __post_init__(self):
        check(self)
        bins.check(self)
        demonstrations.check(self)
        require(self.alpha > 0, f"algo.alpha={self.alpha} must be positive")
        require(self.utd > 0, f"algo.utd={self.utd} must be positive")
        known = ("lse", "margin")
        require(self.behaviour in known, f"algo.behaviour={self.behaviour} is not lse or margin")
        known = ("demos", "batch")
        require(
            self.behaviour_mean in known,
            f"algo.behaviour_mean={self.behaviour_mean} is not demos or batch",
        )
        require(
            self.behaviour_temperature > 0,
            f"algo.behaviour_temperature={self.behaviour_temperature} must be positive",
        )
        known = ("online", "target")
        require(self.act_with in known, f"algo.act_with={self.act_with} is not online or target")
        for name in ("bellman_weight", "behaviour_weight"):
            value = getattr(self, name)
            require(value >= 0, f"algo.{name}={value} must not be negative")


class Advantages(networks.MLP):
    """Advantages before normalisation, of each choice from the centres that those before it led to.

    `(S, B, O)` and `(S, K, B, D)` to `(S, 2, K, B, bins)`: one body and L * D heads, of which the k-th
    context meets the k-th, counted from `first`.
    """

    def __init__(self, sizes: list[int], choices: int, bins: int, rngs, **others):
        super().__init__([*sizes, choices * bins], (len(rngs), 2), rngs, **others)
        self.bins = bins

    def forward(self, observations: Tensor, contexts: Tensor, first: int = 0) -> Tensor:
        count = contexts.shape[1]
        states = observations[:, None].expand(-1, count, -1, -1)
        x = torch.cat([states, contexts], -1).flatten(1, 2)[:, None]
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        heads = slice(first * self.bins, (first + count) * self.bins)
        weight, bias = (
            p[..., heads].unflatten(-1, (count, self.bins)).movedim(-2, 2)
            for p in (self.layers[-1].weight, self.layers[-1].bias)
        )
        return x.unflatten(2, (count, -1)) @ weight + bias


class Critic(nn.Module):
    """Two state values and two families of advantages."""

    def __init__(self, cfg: Config, observation_dim: int, action_dim: int, rngs):
        super().__init__()
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        others = {
            "init": networks.orthogonal(),
            "output_init": networks.orthogonal(0.01),
            "activation": torch.tanh,
        }
        self.value = networks.MLP([observation_dim, *hidden, 1], (len(rngs), 2), rngs, **others)
        sizes, choices = [observation_dim + action_dim, *hidden], cfg.levels * action_dim
        self.advantage = Advantages(sizes, choices, cfg.bins, rngs, **others)

    def values(self, observations: Tensor) -> Tensor:
        """V of both, `(S, B, O)` to `(S, 2, B)`."""
        return self.value(observations[:, None]).squeeze(-1)


class ARSQ(Stateful):
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed.

    `choices` is L * D, how many make an action.
    """

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        normalizer: nn.Module | None = None,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg, self.bins = cfg, Bins(cfg.levels, cfg.bins)
        self.action_dim, self.choices = action_dim, cfg.levels * action_dim
        self.normalizer = normalizer or nn.Identity()
        self.critic = Critic(cfg, observation_dim, action_dim, rngs).to(device)
        self.target = optim.target_of(self.critic)
        self.optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        self._settled = torch.ones(action_dim, action_dim, device=device).tril(-1).bool()
        self._gradients = compile.gradients(self.loss, self.optimizer.parameters, mode)

    # Losses. Batch fields are (S, B, ...), the demonstrations first; each loss is (S,).

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Both networks' Bellman errors, and their behaviour losses on the demonstrations."""
        taken, contexts = self.sequence(batch.actions)
        advantages = self.soft(self.critic.advantage(batch.observations, contexts))
        index = taken[:, None, ..., None].expand(-1, 2, -1, -1, 1)
        of_data = advantages.gather(-1, index)
        bellman, metrics = self.bellman_loss(batch, of_data.squeeze(-1).sum(2))
        demos = self.cfg.demos.rows
        parts = (x[:, :, :, :demos] for x in (advantages, of_data, index))
        behaviour = self.behaviour_loss(*parts)
        if self.cfg.behaviour_mean == "batch":
            behaviour = behaviour * (demos / taken.shape[-1])
        loss = self.cfg.bellman_weight * bellman + self.cfg.behaviour_weight * behaviour
        return loss, metrics | {"behaviour_loss": behaviour}

    def bellman_loss(self, batch: Batch, advantage: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """V + A towards r + discount * min V' at s'; `advantage` (S, 2, B) is of the whole action."""
        with torch.no_grad():
            next_value = self.target.values(batch.next_observations).amin(1)
            y = batch.rewards + self.cfg.discount * (1 - batch.terminated) * next_value
        value = self.critic.values(batch.observations)
        q = value + advantage
        loss = (q - y[:, None]).square().mean(-1).sum(1)
        log_prob = advantage.mean((1, 2)) / self.cfg.alpha
        metrics = {"bellman_loss": loss, "q": q.mean((1, 2)), "value": value.mean((1, 2))}
        return loss, metrics | {"log_prob": log_prob}

    def behaviour_loss(self, advantages: Tensor, of_data: Tensor, index: Tensor) -> Tensor:
        """How far the bins that were not taken come up to the one that was, summed over the choices.

        `advantages` (S, 2, K, B, bins), those of the taken bins and their numbers (S, 2, K, B, 1).
        """
        cfg = self.cfg
        numbers = torch.arange(cfg.bins, device=index.device)
        taken = numbers == index
        if cfg.behaviour == "lse":
            others = (advantages / cfg.behaviour_temperature).masked_fill(taken, -torch.inf)
            height = cfg.behaviour_temperature * others.logsumexp(-1, keepdim=True)
            gaps = (height - of_data).clamp(min=cfg.behaviour_floor).squeeze(-1)
        else:
            gaps = (advantages - of_data).clamp(min=cfg.behaviour_floor)
            gaps = gaps.masked_fill(taken, 0).sum(-1) / (cfg.bins - 1)
        return gaps.sum(2).mean(-1).sum(1)

    def soft(self, raw: Tensor) -> Tensor:
        """Advantages whose exp(A / alpha) sums to 1 over the bins."""
        return raw - self.cfg.alpha * (raw / self.cfg.alpha).logsumexp(-1, keepdim=True)

    def sequence(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The bins that make `actions` `(S, K, B)`, and the centres before each choice `(S, K, B, D)`."""
        taken, centres = self.bins.encode(actions)
        coarse, fine = centres[..., :-1, None, :], centres[..., 1:, None, :]
        contexts = torch.where(self._settled, fine, coarse).flatten(2, 3)
        return taken.flatten(2).transpose(1, 2), contexts.transpose(1, 2)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One step of both networks, and of their targets."""
        grads, metrics = self._gradients(batch)
        self.optimizer.step(grads)
        optim.polyak(self.target, self.critic, self.cfg.polyak)
        return metrics

    # Acting: choice after choice, of all seeds and environments together.

    @torch.no_grad()
    def explore(self, observations: Tensor, uniforms: Tensor) -> Tensor:
        """A sampled action: `(S, n, O)` and uniform `(S, n, L * D)` to `(S, n, D)`."""

        def sample(advantages: Tensor, number: int) -> Tensor:
            reached = torch.softmax(advantages / self.cfg.alpha, -1).cumsum(-1)
            below = reached <= uniforms[..., number, None]
            return below.sum(-1).clamp(max=self.cfg.bins - 1)

        return self._choose(self.normalizer(observations), sample)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The best bin of every choice at raw observations, `(S, n, O) -> (S, n, D)`."""
        return self._choose(self.normalizer(observations), lambda x, _: x.argmax(-1))

    def _choose(self, observations: Tensor, pick: Callable[[Tensor, int], Tensor]) -> Tensor:
        critic = self.critic if self.cfg.act_with == "online" else self.target
        centres = observations.new_zeros(*observations.shape[:-1], self.action_dim)
        for number in range(self.choices):
            level, d = divmod(number, self.action_dim)
            raw = critic.advantage(observations, centres[:, None], number)
            bin_ = pick(self.soft(raw).amin(1)[:, 0], number)
            centres[..., d] = self.bins.zoom(centres[..., d], bin_, level)
        return centres


def train(cfg: Config, run: Run) -> None:
    data, normalizer = demonstrations.load(run, cfg)
    sizes = (data.observation_dim, data.action_dim)
    agent = ARSQ(cfg, *sizes, run.rngs(), normalizer=normalizer, device=run.device, mode=run.mode)
    phases = Phases(cfg, run, data, agent)
    rows = Rows(cfg, run, data, phases)
    uniforms = seeding.uniform(run.seeds, "choices", (1, agent.choices), run.device)
    update = compile.captured(agent.update, run.mode)
    state = {"agent": agent, "buffer": data, "rows": rows, "uniforms": uniforms, **phases.parts}
    for step in run.steps(**state):
        acts = phases.online(step)
        if acts:  # on the host before the update: see difference 5
            actions = phases.choose(lambda seen, _: agent.explore(seen, uniforms.next()))
        if phases.learns(step):
            for _ in range(cfg.utd if acts else 1):
                metrics = update(rows.sample(step))
            run.log(step, metrics | phases.metrics())
        if acts:
            phases.step(actions)
        run.evaluate(step, agent.act)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
