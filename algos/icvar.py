"""ICVaR-L, ICVaR-G and ICVaR-HF: regret for the iterated CVaR (Chen et al. 2024, ICLR,
arXiv:2307.02842).

    V_h(s) = max_a { r(s,a) + C[V_{h+1}](s,a) },   C[V] = max_x { x - E[(x - V(s'))^+] / tau }

with the maximum taken over a net of spacing `net`. Three kinds of knowledge, chosen by `kind`:

    linear      (L)  P = <theta_h, phi(s',s,a)>, phi known. E[(x - V)^+] = <theta_h, psi_x(s,a)> is linear in
                     theta_h, psi_x = sum_s' phi(s',s,a) (x - V(s'))^+, so that theta_h is found by ridge
                     regression of (x - V_{h+1}(s_{h+1}))^+ on psi_x, and Q gets the bonus
                     2 net + beta / tau max_x ||psi_x||_{Lambda_h^-1}
    general     (G)  P in a finite class: those whose squared error on the same targets is near the least
                     form the confidence set, and the most optimistic model of it is played
    preferences (HF) besides, r is in a finite class and unknown: each episode m pairs of trajectories, by
                     the policy and by a uniform reference, are compared by a simulated person who prefers
                     the first with probability sigmoid(its reward - the other's); rewards of nearly the
                     largest likelihood form a second confidence set

Which x an episode regresses at is part of the method: the one at which the least is known of the pair that
was visited (L: the longest psi_x; G and HF: where the confidence set disagrees most).

    python algos/icvar.py task=risk/linear-mixture steps=1000 algo.tau=0.25
    corerl train -m algo=icvar task=risk/linear-mixture algo.kind=linear,general,preferences seeds=5

A step is an episode. `suboptimality` is the exact iterated optimum (cvar_tabular) less the exact iterated
CVaR of the policy that the episode used, `regret` its sum.

Our reading throughout: the paper's body was not at hand, and what follows is from its abstract and reviews.
 1. beta = bonus_scale (H sqrt(d log((1 + k H^3) / delta)) + sqrt(lambda d)), lambda = ridge: the usual
    self-normalised form, since V is at most H. At `bonus_scale=1` every Q is at its cap for thousands of
    episodes.
 2. Q is capped at the steps that are left, since rewards are at most one (paper: at H).
 3. The width of the confidence sets is bonus_scale H^2 log(|class| H k / delta) for models and
    bonus_scale log(|rewards| k / delta) for rewards.
 4. HF plays the best pair of model and reward for its iterated optimum. Rewards in the class differ by more
    than a constant, so that comparisons tell them apart.
 5. Transitions of the last step are not modelled: nothing is paid after it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from corerl import seeding
from corerl.config import Settings, at_least, one_of, positive, within
from corerl.errors import CorerlError
from corerl.nn.learner import Sizes, Spec
from corerl.risk.solvers import iterated, iterated_optima, iterated_value
from corerl.training.run import Run
from corerl.training.tabular import Learners, TabularLearner, TabularPlayer, finite_mdp, play


@dataclass
class Config(Settings):
    actions = "discrete"
    name: str = "icvar"
    label: str = "ICVaR"

    kind: str = one_of(  # linear (ICVaR-L) | general (ICVaR-G) | preferences (ICVaR-HF)
        "linear", "general", "preferences"
    )
    objective: str = one_of("iterated")  # iterated CVaR (the only choice, shown in reports)
    tau: float = within(0.25, "(0, 1]")  # CVaR level at every step, the share of worst outcomes
    net: float = positive(0.05)  # spacing of the grid of x over which CVaR is maximised
    bonus_scale: float = at_least(0, 0.03)  # factor of the confidence widths (1: as in theory)
    delta: float = within(0.1, "(0, 1)")  # failure probability of the confidence bounds
    ridge: float = positive(1.0)  # ridge lambda of the regression (kind=linear)
    pairs: int = positive(5)  # m, comparisons per episode (kind=preferences)


class Linear(TabularLearner):
    """ICVaR-L for one seed. Attributes: `table` (H, S), the actions of the last episode."""

    arrays = ("gram", "moments", "table")

    def __init__(self, cfg: Config, env, rng: np.random.Generator):
        self.cfg, self.rng, self.mdp, self.kernels = cfg, rng, env.mdp, env.kernels
        self.rewards = (env.mdp.probabilities * env.mdp.rewards).sum(-1)  # (S, A)
        steps, d = env.mdp.horizon, len(env.kernels)
        self.net = np.arange(0, steps + cfg.net, cfg.net)  # (X,)
        self.gram = np.tile(cfg.ridge * np.eye(d), (steps - 1, 1, 1))  # Lambda_h
        self.moments = np.zeros((steps - 1, d))
        self.table = np.zeros((steps, env.mdp.sizes[0]), int)
        self.episodes = 0

    def episode(self) -> dict[str, float]:
        """Plans, plays once and learns from it."""
        self.episodes += 1
        values, lengths, psis = self.plan()
        trajectory = play(self.mdp, self.table, self.rng)
        for h, (state, action, successor) in enumerate(trajectory[:-1]):
            x = lengths[h][state, action].argmax()
            psi = psis[h][state, action, x]
            self.gram[h] += np.outer(psi, psi)
            self.moments[h] += psi * max(0.0, self.net[x] - values[h + 1][successor])
        return {"uncertainty": float(np.mean([length.max(-1).mean() for length in lengths]))}

    def plan(self) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        """Returns optimistic values (S,) of steps 0 to H, and ||psi_x|| and psi_x of each. Sets `table`."""
        steps, values = self.mdp.horizon, [np.zeros(self.mdp.sizes[0])]
        lengths: list[np.ndarray] = []
        psis: list[np.ndarray] = []
        for h in reversed(range(steps)):
            q = self.rewards
            if h < steps - 1:
                psi = features(self.kernels, values[0], self.net)  # (S, A, X, d)
                inverse = np.linalg.inv(self.gram[h])
                theta = inverse @ self.moments[h]
                length = np.sqrt(np.einsum("saxd,de,saxe->sax", psi, inverse, psi))
                value = (self.net - psi @ theta / self.cfg.tau).max(-1)
                bonus = 2 * self.cfg.net + self.beta() / self.cfg.tau * length.max(-1)
                q = np.clip(self.rewards + value + bonus, 0, steps - h)
                lengths.insert(0, length)
                psis.insert(0, psi)
            self.table[h] = q.argmax(1)
            values.insert(0, q.max(1))
        return values, lengths, psis

    def beta(self) -> float:
        d, steps = len(self.kernels), self.mdp.horizon
        size = np.log((1 + self.episodes * steps**3) / self.cfg.delta)
        return self.cfg.bonus_scale * (steps * np.sqrt(d * size) + np.sqrt(self.cfg.ridge * d))


class General(Linear):
    """ICVaR-G for one seed: the class of models is that of the environment's mixtures."""

    arrays = ("errors", "alive", "table")

    def __init__(self, cfg: Config, env, rng: np.random.Generator):
        self.cfg, self.rng, self.mdp = cfg, rng, env.mdp
        self.models = np.einsum("md,dsat->msat", env.models, env.kernels)
        steps, count = env.mdp.horizon, len(self.models)
        self.net = np.arange(0, steps + cfg.net, cfg.net)
        self.payoffs = self.known_payoffs(env)  # (R, S, A)
        solved = iterated_optima(self.models[:, None], self.payoffs, steps, cfg.tau)
        self.values, self.tables = solved  # (H + 1, M, R, S), (H, M, R, S)
        self.errors = np.zeros(count)  # squared, on all targets so far
        self.alive = np.ones(count, bool)  # the confidence set
        self.table = np.zeros((steps, env.mdp.sizes[0]), int)
        self.episodes = 0

    def known_payoffs(self, env) -> np.ndarray:
        return (env.mdp.probabilities * env.mdp.rewards).sum(-1)[None]

    def episode(self) -> dict[str, float]:
        """Plays the most optimistic model and reward, and learns from it."""
        self.episodes += 1
        possible = np.outer(self.alive, self.possible_payoffs())
        first = self.values[0] @ self.mdp.start
        m, r = np.unravel_index(np.where(possible, first, -np.inf).argmax(), first.shape)
        self.table[...] = self.tables[:, m, r]
        trajectory = play(self.mdp, self.table, self.rng)
        for h, (state, action, successor) in enumerate(trajectory[:-1]):
            self._learn(self.values[h + 1, m, r], state, action, successor)
        self.alive[...] = self.errors <= self.errors.min() + self.width()
        self.compare(trajectory)
        return {"models": float(self.alive.sum())}

    def _learn(self, value: np.ndarray, state: int, action: int, successor: int) -> None:
        short = np.maximum(self.net[:, None] - value, 0)  # (X, S)
        means = self.models[:, state, action] @ short.T  # (M, X)
        spread = np.ptp(means[self.alive], axis=0)
        x = int(spread.argmax())
        self.errors += (means[:, x] - short[x, successor]) ** 2

    def width(self) -> float:
        steps = self.mdp.horizon
        size = np.log(len(self.models) * steps * self.episodes / self.cfg.delta)
        return self.cfg.bonus_scale * steps**2 * size

    def possible_payoffs(self) -> np.ndarray:
        """Marks the rewards that may be true, (R,) bool."""
        return np.ones(1, bool)

    def compare(self, trajectory: list[tuple[int, int, int]]) -> None:
        """Does nothing: rewards are known."""


class Preferences(General):
    """ICVaR-HF for one seed: rewards are learnt from comparisons."""

    arrays = (*General.arrays, "likelihood")

    def __init__(self, cfg: Config, env, rng: np.random.Generator):
        super().__init__(cfg, env, rng)
        self.true_rewards = (env.mdp.probabilities * env.mdp.rewards).sum(-1)  # the person's
        self.likelihood = np.zeros(len(self.payoffs))

    def known_payoffs(self, env) -> np.ndarray:
        return env.payoffs

    def possible_payoffs(self) -> np.ndarray:
        size = np.log(len(self.payoffs) * self.episodes / self.cfg.delta)
        return self.likelihood >= self.likelihood.max() - self.cfg.bonus_scale * size

    def compare(self, trajectory: list[tuple[int, int, int]]) -> None:
        """Compares m pairs, the first with the episode's own trajectory."""
        for i in range(self.cfg.pairs):
            one = trajectory if i == 0 else play(self.mdp, self.table, self.rng)
            other = play(self.mdp, None, self.rng)
            difference = total(self.payoffs, one) - total(self.payoffs, other)  # (R,)
            true_difference = total(self.true_rewards[None], one) - total(
                self.true_rewards[None], other
            )
            prefers = self.rng.random() < 1 / (1 + np.exp(-true_difference[0]))
            self.likelihood -= np.logaddexp(0, -difference if prefers else difference)

    def episode(self) -> dict[str, float]:
        return super().episode() | {"payoffs": float(self.possible_payoffs().sum())}


LEARNERS = {"linear": Linear, "general": General, "preferences": Preferences}


def features(kernels: np.ndarray, value: np.ndarray, net: np.ndarray) -> np.ndarray:
    """Returns psi_x(s, a) = sum_s' phi(s', s, a) (x - V(s'))^+, (S, A, X, d), of kernels (d, S, A, S')."""
    short = np.maximum(net[:, None] - value, 0)
    return np.einsum("dsat,xt->saxd", kernels, short)


def total(rewards: np.ndarray, trajectory: list[tuple[int, int, int]]) -> np.ndarray:
    """Sums a trajectory's rewards by each of the rewards (R, S, A): (R,)."""
    states, actions, _ = np.array(trajectory).T
    return rewards[:, states, actions].sum(-1)


def build(cfg: Config, spec: Spec) -> Learners:
    """Returns a learner for each seed, beside the optimum."""
    env = spec.make_env().unwrapped
    rngs = [np.random.default_rng(seeding.derive(seed, "icvar")) for seed in spec.identities]
    learners = [LEARNERS[cfg.kind](cfg, env, rng) for rng in rngs]
    value = lambda learner: iterated_value(env.mdp, learner.table, cfg.tau)  # noqa: E731
    return Learners(learners, iterated(env.mdp, cfg.tau).value, value)


def parts(agent: Learners, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated."""
    policies = [lambda t, s, _, learner=l: learner.table[t, s] for l in agent.learners]
    return {"policy": TabularPlayer(agent.learners[0].mdp, policies)}


def train(cfg: Config, run: Run) -> None:
    env = run.task.make_env()
    if not hasattr(env.unwrapped, "kernels"):
        raise CorerlError(
            f"{run.task.id} is not a linear mixture, as ICVaR needs. Choose task=risk/linear-mixture."
        )
    finite_mdp(run.task)  # raises where no player can read the state
    spec = run.spec(Sizes.of(env))
    agent = build(cfg, spec)
    player = parts(agent, spec)["policy"]
    for step in run.steps(agent=agent):
        run.log(step, agent.update())
        run.evaluate(step, player)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
