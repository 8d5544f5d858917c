"""MD3QN: distributional RL for multi-dimensional reward functions (Zhang et al. 2021, NeurIPS).

Learns the joint law of the returns of K sources of reward: a network gives M particles in R^K for every
action, and their maximum mean discrepancy (MMD) to r + discount * (the target network's particles at
the next state) is made small. Actions are chosen by the mean of the sum over sources, and by nothing
else of the law. With one source it is MMD-QN (Nguyen-Tang et al. 2021, arXiv:2007.12354).

    python algos/md3qn.py task=maze/v1-vector steps=40000 seeds=3
    corerl train algo=md3qn task=atari/MsPacman steps=50000000 seeds=3
    corerl train algo=mmdqn task=atari/Pong steps=50000000 seeds=3

What differs, and its switch. The authors' code is their release (one commit, TensorFlow 1), which made the
figures and is the default; of the paper we know the submitted text.

    item            paper                       authors' code                        switch
 1  estimator       sums over i != j only       v: all M^2 pairs, clamped at 0       estimator
 2  kernel weights  equal                       sqrt(bandwidth)                      kernel_weight
 3  distance        squares summed over K       averaged over the sources            distance
 4  convolutions    -                           same: 7744 features; valid: 3136     padding
 5  equal actions   -                           share the target's particles; ours   -
                                                plays the first, theirs draws one
 6  uniform policy  law of the mazes' figures   next action drawn anew each time     policy
 7  time limit      -                           an end, on mazes (150 steps) and     -
                                                Atari; ours: none
 8  random start    -                           50,000 steps                         data.learning_starts
 9  MMD-QN's reward -                           sum of clipped sources, up to K;     data.clip
                                                usual is the clipped total, 1
10  learning rate   constant                    constant; ours may fall, for mazes   cosine
11  bounds on       appendix, mazes v3 to v6    tested with the reward counted       -
    returns                                     twice; ours: none
12  start of a game -                           at once; MMD-QN's (mmdrl at          -
                                                892dcbc): after 1 to 30 idle steps,
                                                in evaluation too; ours: at once
13  a lost life     -                           empties the stack of frames; ours:   -
                                                in training alone

In 1 the left-out terms are constant, so that v has the gradient of the paper's sum; u is the unbiased
estimator, with means over i != j.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from corerl.buffers.frame_replay import Transitions
from corerl.config import at_least, one_of, require
from corerl.nn import optim
from corerl.nn.critics import action_values, gather_actions
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.networks import variance_scaling
from corerl.training import deep_q
from corerl.training.deep_q import DeepQ, learn
from corerl.training.experience import Experience
from corerl.training.run import Run

CHUNK = {"cpu": 2**16, "cuda": 2**22}
"""Distances whose kernels are held at once: with 17 bandwidths 4.5 MB on a CPU, 285 MB on a GPU."""


@dataclass
class Config(DeepQ):
    name: str = "md3qn"
    label: str = "MD3QN"

    particles: int = at_least(2, 200)  # M, number of particles of each action's return distribution
    sources: str = one_of("all", "total")  # all (sources jointly) | total (their sum, MMD-QN)
    policy: str = one_of("greedy", "uniform")  # whose returns it learns: greedy | uniform
    estimator: str = one_of("v", "u")  # MMD by v (all pairs of particles, authors) | u (unbiased)
    kernel_weight: str = one_of(  # weights of kernels, sqrt (of bandwidth, authors) | equal (paper)
        "sqrt", "equal"
    )
    distance: str = one_of("mean", "sum")  # mean (authors) | sum (paper) of squares over sources
    bandwidths: list[float] = field(default_factory=lambda: [2.0**i for i in range(-8, 9)])

    cosine: bool = False  # learning rate decays to 0 along a cosine
    padding: str = one_of("same", "valid")  # convolutions' padding, same (authors) | valid

    def __post_init__(self):
        super().__post_init__()
        require(
            len(self.bandwidths) > 0 and all(0 < b < float("inf") for b in self.bandwidths),
            f"algo.bandwidths={self.bandwidths} must be a list of positive numbers",
        )
        require(
            self.policy == "greedy" or self.data.epsilon == 1,
            "algo.policy=uniform learns the returns of random actions. Set algo.data.epsilon=1 as well",
        )
        require(
            self.policy == "uniform" or self.data.eval_epsilon < 1,
            "algo.policy=greedy needs algo.data.eval_epsilon below 1, or its evaluation is random. For "
            "task=maze/v0 to v2, also set algo.data.epsilon=0.01",
        )


def gaussian_mixture(distances: Tensor, bandwidths: Tensor, weights: Tensor) -> Tensor:
    """Returns sum_b w_b exp(-d / b) of every element of `distances`, which are squared.

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


class MD3QN(Stateful):
    """MD3QN agents of S seeds, with M particles in R^K for every action."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, self._actions = cfg, spec.action_dim
        options = {"init": variance_scaling(3**-0.5), "padding": cfg.padding}
        self.particles = action_values(cfg, spec, cfg.particles, spec.sources, **options)
        self.target = optim.target_of(self.particles)
        self.optimizer = optim.Adam(self.particles.parameters(), cfg.lr, eps=cfg.adam_eps)
        falling = optim.cosine(spec.steps)
        self.schedule = optim.Schedule(self.optimizer, falling) if cfg.cosine else None
        dtype = torch.get_default_dtype()
        self._bandwidths = torch.tensor(cfg.bandwidths, dtype=dtype, device=spec.device)
        self._weights = (
            self._bandwidths.sqrt() if cfg.kernel_weight == "sqrt" else self._bandwidths**0
        )
        self._step = GradientStep(self.loss, self.optimizer, spec.mode, self.schedule)

    # Losses. Batch fields are (S, B, ...), draws are (S, B); the loss is (S,).

    def loss(self, batch: Transitions, draws: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes the squared MMD of the taken action's particles to their targets, mean over the batch."""
        with torch.no_grad():
            next_particles = self.target(batch.next_observations)
            share = self.next_policy(next_particles, draws)
            chosen = (share[..., None, None] * next_particles).sum(2)
            discounts = batch.discounts[..., None, None]
            y = batch.rewards[:, :, None] + discounts * chosen
        x = gather_actions(self.particles(batch.observations), batch.actions)
        loss = self.squared_mmd(x, y).mean(-1)
        spread = x.std(2, correction=0).mean((1, 2))
        return loss, {"loss": loss, "value": x.mean(2).sum(-1).mean(-1), "spread": spread}

    def next_policy(self, particles: Tensor, draws: Tensor | None) -> Tensor:
        """Returns the actions' shares `(S, B, A)` in the target: all the best one's, or a uniform draw's."""
        if draws is not None:
            numbers = torch.arange(self._actions, device=draws.device)
            return ((draws[..., None] * self._actions).long() == numbers).to(particles.dtype)
        values = particles.mean((3, 4))
        best = (values == values.amax(-1, keepdim=True)).to(values.dtype)
        return best / best.sum(-1, keepdim=True)

    def squared_mmd(self, x: Tensor, y: Tensor) -> Tensor:
        """Computes MMD^2 `(S, B)` of particles `(S, B, M, K)`. No gradient reaches `y`'s own term."""
        left, right = torch.stack([x, x, y]), torch.stack([x, y, y])
        squares = (left[..., :, None, :] - right[..., None, :, :]).square()
        distances = squares.mean(-1) if self.cfg.distance == "mean" else squares.sum(-1)
        kernels = gaussian_mixture(distances, self._bandwidths, self._weights)
        if self.cfg.estimator == "v":
            xx, xy, yy = kernels.mean((-2, -1)).unbind()
            return (xx + yy - 2 * xy).clamp(min=0)
        m = x.shape[2]
        xy = kernels[1].mean((-2, -1))
        own = (kernels[::2].sum((-2, -1)) - m * self._weights.sum()) / (m * (m - 1))
        return own.sum(0) - 2 * xy

    def update(self, batch: Transitions, draws: Tensor | None = None) -> dict[str, Tensor]:
        """Takes one step of Adam. `draws` (S, B) are uniform, for `policy=uniform`."""
        return self._step(batch, draws)

    def copy_target(self) -> None:
        """Makes the target network equal to the online one."""
        optim.polyak(self.target, self.particles, 1.0)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Returns the best actions by the mean of the total return, `(S, n, ...) -> (S, n)`."""
        return self.particles(observations).mean((3, 4)).argmax(-1)


build = MD3QN
parts = deep_q.parts


def train(cfg: Config, run: Run) -> None:
    experience = Experience(cfg.data, run, cfg.batch_size, cfg.discount, cfg.sources == "all")
    spec = run.spec(experience, steps=experience.updates(run.cfg.steps))
    agent = MD3QN(cfg, spec)
    noise = run.uniform("noise", cfg.batch_size) if cfg.policy == "uniform" else None
    learn(cfg, run, agent, experience, noise)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
