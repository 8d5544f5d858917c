"""MD3QN: distributional RL for multi-dimensional reward functions (Zhang et al. 2021, NeurIPS).

Learns the joint law of the returns of K sources of reward: a network gives M particles in R^K for every
action, and their maximum mean discrepancy (MMD) to r + discount * (the target network's particles at
the next state) is made small. Actions are chosen by the mean of the sum over sources, and by nothing
else of the law. With one source it is MMD-QN (Nguyen-Tang et al. 2021, arXiv:2007.12354).

    python algos/md3qn.py task=maze/v1-vector steps=40000 seeds=3
    corerl train algo=md3qn task=atari/MsPacman steps=50000000 seeds=3
    corerl train algo=mmdqn task=atari/Pong steps=50000000 seeds=3

Differences. The authors' code is their release (one commit, TensorFlow 1); of the paper we know the
submitted text.
 1. The loss is the code's: the biased estimator (`estimator=v`: all M^2 pairs, clamped at 0), squared
    distances averaged over the sources (`distance=mean`) and kernels weighted by sqrt(b)
    (`kernel_weight=sqrt`), which made the figures. The paper writes equal weights and summed distances
    (`equal`, `sum`), and sums over i != j only. The left-out terms are constant, so that this has the
    code's gradient; `estimator=u` is the unbiased one, with means over i != j.
 2. Convolutions have the code's `padding=same` (7744 features; `valid`: 3136).
 3. In the target, actions of exactly equal value share the particles by average, as in the code. An
    action to play is the first of equal ones; the code draws among them.
 4. `policy=uniform` learns the law of the uniform policy (the paper's maze figures): the next action is
    drawn anew with every transition, as in the code.
 5. A time limit is no end. Ends of the authors' mazes at 150 steps are terminal, in Dopamine a game
    stopped at its limit is joined to the next.
 6. The authors draw random actions until 50,000 steps on Atari and 20,000 on the mazes; see
    configs/md3qn.yaml. Their MMD-QN learns the sum of the clipped sources (`data.clip=source`), which is
    up to K where the usual clipped reward is 1 (`data.clip=total`).
 7. `cosine=true` (ours, for the mazes) lets the learning rate fall, so that means settle.
 8. Bounds on returns (the paper's appendix, mazes v3 to v6) are not an objective here; the authors'
    code tests them with the reward counted twice.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.buffers.frame_replay import Transitions
from corerl.config import require
from corerl.nn import compile, networks, optim
from corerl.nn.encoders import Encoder, variance_scaling
from corerl.nn.learner import Stateful
from corerl.training.collector import Collect, EpsilonGreedy, Experience
from corerl.training.run import Run

CHUNK = {"cpu": 2**16, "cuda": 2**22}
"""Distances whose kernels are held at once: with 17 bandwidths 4.5 MB on a CPU, 285 MB on a GPU."""


@dataclass
class Config:
    name: str = "md3qn"
    label: str = "MD3QN"

    particles: int = 200  # M
    sources: str = "all"  # all | total: one return, MMD-QN
    policy: str = "greedy"  # greedy | uniform: whose law is learned
    discount: float = 0.99
    target_every: int = 10_000  # environment steps between copies to the target network

    estimator: str = "v"  # v (authors' code) | u, see difference 1
    kernel_weight: str = "sqrt"  # sqrt(b) (authors' code) | equal (paper)
    distance: str = "mean"  # mean (authors' code) | sum (paper), over the sources
    bandwidths: list[float] = field(default_factory=lambda: [2.0**i for i in range(-8, 9)])

    lr: float = 5e-5
    cosine: bool = False  # the rate decays to 0 over the run
    adam_eps: float = 0.01 / 32
    batch_size: int = 32
    hidden_layers: int = 1  # dense, after the convolutions where observations are images
    hidden_width: int = 512
    padding: str = "same"  # same (authors) | valid, of the convolutions
    data: Collect = field(default_factory=Collect)

    def __post_init__(self):
        require(self.particles > 1, f"algo.particles={self.particles} must be at least 2")
        require(self.sources in ("all", "total"), f"algo.sources={self.sources} unknown")
        require(self.policy in ("greedy", "uniform"), f"algo.policy={self.policy} unknown")
        require(self.estimator in ("v", "u"), f"algo.estimator={self.estimator} unknown")
        weight = self.kernel_weight
        require(weight in ("sqrt", "equal"), f"algo.kernel_weight={weight} unknown")
        require(self.distance in ("mean", "sum"), f"algo.distance={self.distance} unknown")
        require(self.padding in ("same", "valid"), f"algo.padding={self.padding} unknown")
        require(
            len(self.bandwidths) > 0 and min(self.bandwidths) > 0,
            f"algo.bandwidths={self.bandwidths} must be positive numbers",
        )
        require(
            self.policy == "greedy" or self.data.epsilon == 1,
            "algo.policy=uniform learns of random actions and needs algo.data.epsilon=1",
        )
        require(self.hidden_layers > 0, f"algo.hidden_layers={self.hidden_layers} must be positive")
        self.data.require_turns(self.target_every)


class Particles(nn.Module):
    """M particles in R^K for each of A actions, `(S, B, *shape) -> (S, B, A, M, K)`."""

    def __init__(self, cfg: Config, shape: tuple[int, ...], counts: tuple[int, int, int], rngs):
        super().__init__()
        init = variance_scaling(3**-0.5)
        self.encoder = Encoder(
            shape, cfg.hidden_layers, cfg.hidden_width, rngs, init=init, padding=cfg.padding
        )
        outputs = counts[0] * counts[1] * counts[2]
        self.head = networks.Linear(cfg.hidden_width, outputs, (len(rngs),), rngs, init)
        self.counts = counts

    def forward(self, observations: Tensor) -> Tensor:
        return self.head(self.encoder(observations)).unflatten(-1, self.counts)


class MD3QN(Stateful):
    """S independent learners.

    `shape`: of an observation; `actions`, `sources`: how many there are; `steps`: updates, for the cosine.
    """

    def __init__(
        self,
        cfg: Config,
        shape: tuple[int, ...],
        actions: int,
        sources: int,
        rngs: list[torch.Generator],
        *,
        steps: int = 1,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg, self._actions = cfg, actions
        counts = (actions, cfg.particles, sources)
        self.particles = Particles(cfg, shape, counts, rngs).to(device)
        self.target = optim.target_of(self.particles)
        self.optimizer = optim.Adam(self.particles.parameters(), cfg.lr, eps=cfg.adam_eps)
        if cfg.cosine:
            self.schedule = optim.Schedule(self.optimizer, optim.cosine(steps))
        bandwidths = torch.tensor(cfg.bandwidths, dtype=torch.get_default_dtype(), device=device)
        self._bandwidths = bandwidths
        self._weights = bandwidths.sqrt() if cfg.kernel_weight == "sqrt" else bandwidths**0
        self._gradients = compile.gradients(self.loss, self.optimizer.parameters, mode)

    # Losses. Batch fields are (S, B, ...), draws are (S, B); the loss is (S,).

    def loss(self, batch: Transitions, draws: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared MMD of the taken action's particles to their targets, over the batch."""
        with torch.no_grad():
            next_particles = self.target(batch.next_observations)
            share = self.next_policy(next_particles, draws)
            chosen = (share[..., None, None] * next_particles).sum(2)
            discounts = batch.discounts[..., None, None]
            y = batch.rewards[:, :, None] + discounts * chosen
        every = self.particles(batch.observations)
        rows = batch.actions.view(*batch.actions.shape, 1, 1, 1).expand(-1, -1, 1, *every.shape[3:])
        x = every.gather(2, rows).squeeze(2)
        loss = self.squared_mmd(x, y).mean(-1)
        spread = x.std(2, correction=0).mean((1, 2))
        return loss, {"loss": loss, "value": x.mean(2).sum(-1).mean(-1), "spread": spread}

    def next_policy(self, particles: Tensor, draws: Tensor | None) -> Tensor:
        """The shares `(S, B, A)` of the actions in the target: the best one's, or a uniform draw's."""
        if draws is not None:
            numbers = torch.arange(self._actions, device=draws.device)
            return ((draws[..., None] * self._actions).long() == numbers).to(particles.dtype)
        values = particles.mean((3, 4))
        best = (values == values.amax(-1, keepdim=True)).to(values.dtype)
        return best / best.sum(-1, keepdim=True)

    def squared_mmd(self, x: Tensor, y: Tensor) -> Tensor:
        """MMD^2 `(S, B)` of two sets of particles `(S, B, M, K)`; no gradient reaches `y`'s own term."""
        left, right = torch.stack([x, x, y]), torch.stack([x, y, y])
        squares = (left[..., :, None, :] - right[..., None, :, :]).square()
        distances = squares.mean(-1) if self.cfg.distance == "mean" else squares.sum(-1)
        kernels = kernel(distances, self._bandwidths, self._weights)
        if self.cfg.estimator == "v":
            xx, xy, yy = kernels.mean((-2, -1)).unbind()
            return (xx + yy - 2 * xy).clamp(min=0)
        m = x.shape[2]
        xy = kernels[1].mean((-2, -1))
        own = (kernels[::2].sum((-2, -1)) - m * self._weights.sum()) / (m * (m - 1))
        return own.sum(0) - 2 * xy

    def update(self, batch: Transitions, draws: Tensor | None = None) -> dict[str, Tensor]:
        """One step of Adam. `draws` (S, B) are uniform, for `policy=uniform`."""
        grads, metrics = self._gradients(batch, draws)
        self.optimizer.step(grads)
        if self.cfg.cosine:
            self.schedule.step()
        return metrics

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.particles, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The best actions by the mean of the total return, `(S, n, ...) -> (S, n)`."""
        return self.particles(observations).mean((3, 4)).argmax(-1)


def kernel(distances: Tensor, bandwidths: Tensor, weights: Tensor) -> Tensor:
    """sum_b w_b exp(-d / b) of every element of `distances`.

    Autograd would keep a copy per bandwidth. The kernel is a function of one number, so its slope is
    computed along with it, a chunk at a time, and all that is kept is one slope per distance.
    """
    chunk = CHUNK["cuda" if distances.is_cuda else "cpu"]
    both = torch.stack([weights, weights / bandwidths], -1)
    with torch.no_grad():
        parts = []
        for part in distances.detach().flatten().split(chunk):
            # exp(-80) is nothing beside 1, and a CPU takes 20 times as long for what underflows.
            exponents = (part[:, None] / -bandwidths).clamp(min=-80)
            parts.append(torch.exp(exponents) @ both)
        value, slope = torch.cat(parts).view(*distances.shape, 2).unbind(-1)
    return value - slope * (distances - distances.detach())


def train(cfg: Config, run: Run) -> None:
    by_source = cfg.sources == "all"
    experience = Experience(cfg.data, run, cfg.batch_size, cfg.discount, by_source)
    envs = experience.envs
    agent = MD3QN(
        cfg,
        envs.shape,
        envs.actions,
        experience.sources,
        run.rngs(),
        steps=run.cfg.steps // cfg.data.train_every,
        device=run.device,
        mode=run.mode,
    )
    noise = None
    if cfg.policy == "uniform":
        noise = seeding.uniform(run.seeds, "noise", (cfg.batch_size,), run.device)
    policy = EpsilonGreedy(agent.act, cfg.data.eval_epsilon, envs.actions, run.seeds)
    update = compile.captured(agent.update, run.mode)
    state = {"agent": agent, "experience": experience, "noise": noise, "policy": policy}
    for step in run.steps(stride=cfg.data.train_every, **state):
        experience.play(step, agent.act)
        if experience.enough(step):
            metrics = update(experience.sample(), noise and noise.next())
            run.log(step, metrics | {"episode_return": envs.episode_returns})
        if step % cfg.target_every == 0:
            agent.copy_target()
        run.evaluate(step, policy)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
