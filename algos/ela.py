"""ELA and ELLA: static CVaR in low-rank MDPs whose features are unknown (Zhao et al. 2024,
arXiv:2311.11965).

Transitions are P_h(s'|s,a) = <phi_h(s,a), mu_h(s')> with phi and mu from finite classes that hold the
truth; rewards are known. In every episode k, for each step h: gather transitions, fit (phi_h, mu_h) by
maximum likelihood, give what phi_h has seen little of a bonus, and plan for CVaR with optimism:

    W_H(s, b) = b^+,   W_h(s, b) = min_a { E_model[ W_{h+1}(s', b - r) ] - bonus_h(s, a) }
    c^k = argmax_c { c - W_0(s_0, c) / tau },   bonus = min(alpha ||phi_h(s,a)||_{Sigma_h^-1}, H)

`planner=exact` (ELA) takes the expectation under the fitted model. `planner=least_squares` (ELLA) rounds
rewards and budgets down to multiples of `unit` and regresses W_{h+1} on phi_h over the data.

    python algos/ela.py task=risk/low-rank steps=1000 algo.tau=0.25
    corerl train -m algo=ela task=risk/low-rank algo.planner=exact,least_squares seeds=5

A step is an episode of the algorithm. `suboptimality` is the exact optimum (cvar_tabular) less the exact
CVaR of the policy that the episode planned, `regret` its sum, `trajectories` what has been gathered.

Our reading throughout: the paper's body was not at hand, and what follows is from its abstract, its
reviews and REP-UCB (Uehara, Zhang and Sun 2022), of which the reviewers call it the augmented form.
 1. Data of step h: the last policy for h steps, then a uniform action; and for h > 0 besides, the last
    policy for h - 1 steps, then two uniform actions. Likelihoods use both, Sigma_h the first.
 2. alpha = bonus_scale H sqrt((A + d^2) log(|classes| H k / delta)) and Sigma_h = sum phi phi' + lambda I
    with lambda = d log(|classes| H k / delta): REP-UCB's form with its constants set to one. At
    `bonus_scale=1` every bonus is at its cap H for the first thousands of episodes.
 3. W is kept in [0, H], since a cost below 0 is impossible.
 4. ELLA regresses on the observed transitions of step h. (The paper may draw them from the fitted model.)
 5. Transitions of the last step are not modelled: nothing is paid after it.
 6. Planning rounds each reward, acting what was collected, once; the two are one where rewards are
    multiples of `unit`, as on risk/low-rank.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from corerl import seeding
from corerl.config import Settings, at_least, one_of, positive, within
from corerl.errors import CorerlError
from corerl.nn.learner import Sizes, Spec
from corerl.risk.finite_mdp import FiniteMDP, return_law
from corerl.risk.static_cvar import static
from corerl.training.run import Run
from corerl.training.tabular import Learners, TabularLearner, TabularPlayer, finite_mdp


@dataclass
class Config(Settings):
    actions = "discrete"
    name: str = "ela"
    label: str = "ELA"

    objective: str = one_of("static")  # static CVaR (the only choice, shown in reports)
    tau: float = within(0.25, "(0, 1]")  # CVaR level, the share of worst returns
    planner: str = one_of("exact", "least_squares")  # exact (ELA) | least_squares (ELLA)
    unit: float = positive(0.25)  # rewards and budgets are rounded down to multiples of this
    bonus_scale: float = at_least(0, 0.01)  # factor of the exploration bonus (1: as in theory)
    delta: float = within(0.1, "(0, 1)")  # failure probability of the confidence bounds


class ELA(TabularLearner):
    """One learner. `features` (F, S, A, d) and `measures` (M, d, S) are its classes.

    Attributes: `plan`, the actions (H, S, budgets) and the place of the first budget; None at first.
    """

    arrays, counters = ("likelihood", "counts", "seen"), ("episodes", "trajectories")

    def __init__(
        self,
        cfg: Config,
        mdp: FiniteMDP,
        features: np.ndarray,
        measures: np.ndarray,
        rng: np.random.Generator,
    ):
        self.cfg, self.mdp, self.rng = cfg, mdp, rng
        self.features, self.measures = features, measures
        steps, (states, actions) = mdp.horizon, mdp.sizes
        mean = (mdp.probabilities * mdp.rewards).sum(-1)
        self.paid = np.floor(mean / cfg.unit + 1e-9).astype(int)  # (S, A) in units
        highest = int(np.ceil(steps * max(mdp.rewards.max(), cfg.unit) / cfg.unit))
        self.budgets = cfg.unit * np.arange(-highest, highest + 1)
        kernels = np.einsum("fsad,mdt->fmsat", features, measures)
        self.log_kernels = np.log(np.maximum(kernels, 1e-300))
        modelled = max(1, steps - 1)  # difference 5
        self.likelihood = np.zeros((modelled, len(features), len(measures)))
        self.counts = np.zeros((modelled, states, actions, states))  # of all data
        self.seen = np.zeros((modelled, states, actions))  # of Sigma's data
        self.plan: tuple[np.ndarray, int] | None = None
        self.episodes = self.trajectories = 0

    def episode(self) -> dict[str, float]:
        """Gathers data, fits and plans."""
        for h in range(len(self.counts)):
            self._gather(h, uniform=1)
            if h > 0:
                self._gather(h, uniform=2)
        self.episodes += 1
        model = [self.fitted(h) for h in range(len(self.counts))]
        bonuses = [self.bonus(h, phi) for h, (phi, _) in enumerate(model)]
        self.plan = self.planned(model, bonuses)[1:]
        return {"bonus": float(np.mean(bonuses)), "trajectories": float(self.trajectories)}

    def _gather(self, h: int, uniform: int) -> None:
        """Gathers one transition of step h, whose last `uniform` actions are uniform."""
        state, collected = self.mdp.first(self.rng), 0.0
        self.trajectories += 1
        for t in range(h + 1):
            random = t > h - uniform or self.plan is None
            action = (
                self.rng.integers(self.mdp.sizes[1]) if random else self.act(t, state, collected)
            )
            before = state
            reward, state = self.mdp.step(state, int(action), self.rng)
            collected += reward
        self.counts[h, before, action, state] += 1
        self.seen[h, before, action] += uniform == 1
        self.likelihood[h] += self.log_kernels[:, :, before, action, state]

    def fitted(self, h: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the most likely features (S, A, d) and kernel (S, A, S') of step h."""
        f, m = np.unravel_index(self.likelihood[h].argmax(), self.likelihood[h].shape)
        return self.features[f], self.features[f] @ self.measures[m]

    def bonus(self, h: int, phi: np.ndarray) -> np.ndarray:
        """Computes alpha times the length of phi in the metric of what was seen, at most H: (S, A)."""
        dimension, steps = phi.shape[-1], self.mdp.horizon
        size = np.log(self.likelihood[h].size * steps * self.episodes / self.cfg.delta)
        sigma = dimension * size * np.eye(dimension)
        sigma += np.einsum("sa,sad,sae->de", self.seen[h], phi, phi)
        length = np.sqrt(np.einsum("sad,de,sae->sa", phi, np.linalg.inv(sigma), phi))
        alpha = steps * np.sqrt((self.mdp.sizes[1] + dimension**2) * size)
        return np.minimum(self.cfg.bonus_scale * alpha * length, steps)

    def planned(
        self, model: list[tuple[np.ndarray, np.ndarray]], bonuses: list[np.ndarray]
    ) -> tuple[float, np.ndarray, int]:
        """Returns the optimistic CVaR, the actions (H, S, budgets), and the best first budget's place."""
        states, place = self.mdp.sizes[0], np.arange(len(self.budgets))
        cost = np.tile(np.maximum(self.budgets, 0), (states, 1))  # W_H (S, budgets)
        rest = np.maximum(place - self.paid[..., None], 0)  # (S, A, budgets): where b - r stands
        actions = []
        for h in reversed(range(self.mdp.horizon)):
            if h < len(bonuses):
                ahead = self._expected(h, *model[h], cost)
                q = np.take_along_axis(ahead, rest, -1) - bonuses[h][..., None]
            else:
                q = np.maximum(self.budgets[rest], 0)
            actions.append(q.argmin(1))
            cost = np.clip(q.min(1), 0, self.mdp.horizon)
        values = self.budgets - self.mdp.start @ cost / self.cfg.tau
        best = int(values.argmax())
        return float(values[best]), np.stack(actions[::-1]), best

    def _expected(
        self, h: int, phi: np.ndarray, kernel: np.ndarray, cost: np.ndarray
    ) -> np.ndarray:
        """Expects cost(s', b) by the model, or by regression of it on phi: (S, A, budgets)."""
        if self.cfg.planner == "exact":
            return kernel @ cost
        counts = self.counts[h]
        gram = np.einsum("sat,sad,sae->de", counts, phi, phi) + np.eye(phi.shape[-1])
        weights = np.linalg.solve(gram, np.einsum("sat,sad,tb->db", counts, phi, cost))
        return phi @ weights

    def act(self, t: int, state: int, collected: float) -> int:
        """Returns the plan's action. Before there is one, the first."""
        if self.plan is None:
            return 0
        actions, first = self.plan
        spent = round(collected / self.cfg.unit)
        return int(actions[t, state, max(0, first - spent)])

    def state_dict(self) -> dict[str, Any]:
        plan = self.plan and {"actions": torch.from_numpy(self.plan[0]), "first": self.plan[1]}
        return super().state_dict() | {"plan": plan}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        plan = state["plan"]
        self.plan = plan and (plan["actions"].numpy(), plan["first"])


def build(cfg: Config, spec: Spec) -> Learners:
    """Returns a learner for each seed, beside the optimum."""
    env = spec.make_env().unwrapped
    rngs = [np.random.default_rng(seeding.derive(seed, "ela")) for seed in spec.identities]
    learners = [ELA(cfg, env.mdp, env.features, env.measures, rng) for rng in rngs]
    value = lambda learner: return_law(env.mdp, learner.act)[0].cvar(cfg.tau)  # noqa: E731
    return Learners(learners, static(env.mdp, cfg.tau).value, value)


def parts(agent: Learners, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated."""
    policies = [learner.act for learner in agent.learners]
    return {"policy": TabularPlayer(agent.learners[0].mdp, policies)}


def train(cfg: Config, run: Run) -> None:
    env = run.task.make_env()
    if not hasattr(env.unwrapped, "features"):
        raise CorerlError(
            f"{run.task.id} has no classes of features, which ELA needs. Choose task=risk/low-rank."
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
