"""R2PVI: robust regularised pessimistic value iteration, with PEVI and DRPVI (Tang, Liu and Xu 2025, ICML,
arXiv:2411.18612).

Offline, in a linear MDP P(s'|s,a) = <phi(s,a), mu(s')> whose phi is known. The policy is to hold up if the
dynamics change after training. Nature may change every mu_i by itself, and pays `scale` times a divergence:

    Q_h(s,a) = [ r(s,a) + <phi(s,a), nu_h> - penalty_h(s,a) ] clipped to [0, H - h],   V_h = max_a Q_h
    nu_h,i   = min_q q.V_{h+1} + scale D(q, mu_i)

where mu_i enters its dual (corerl/risk/robust.py) as m_i[f], the i-th coordinate of a ridge regression of
f(s') on phi(s,a) over the data of step h: Lambda_h = ridge I + sum phi phi'.

    kind=tv     m_i[min(V, min V + scale)]
    kind=kl     -scale log max(m_i[exp(-V / scale)], exp(-H / scale))
    kind=chi2   max_c m_i[V_c] + m_i[V_c]^2 / (4 scale) - m_i[V_c^2] / (4 scale),   V_c = min(V, c)
    kind=ball   DRPVI: total variation within a ball, max_c m_i[V_c] - scale (c - min V)
    kind=none   PEVI: m_i[V], not robust (Jin, Yang and Wang 2021)

    penalty     beta sum_i phi_i sqrt((Lambda_h^-1)_ii); PEVI: beta ||phi||_{Lambda_h^-1}

    python algos/r2pvi.py task=risk/linear-shift algo.kind=tv
    corerl train -m algo=pevi,drpvi,r2pvi,r2pvi_kl,r2pvi_chi2 task=risk/low-rank steps=1000 seeds=5

A step gathers one more episode by uniform actions, and plans on all so far. `suboptimality` is the exact
robust optimum less the exact robust value of the plan, for the kind and scale of training. `nominal` is the
plan's mean return under unchanged dynamics. On a task whose environment has no `phi`, every state and action
has its own feature.

Differences. The paper's abstract and the authors' code could be read
(panxulab/Robust-Regularized-Pessimistic-Value-Iteration at d552af7).
 1. The code's penalty is the smaller beta sqrt(sum_i phi_i^2 (Lambda^-1)_ii): `penalty=authors`. The sum
    bounds the error of <phi, nu>, whose coordinates are estimated one by one.
 2. In its simulated MDP the code minimises chi2's dual over c. It must be maximised, as the code does for the
    American option. Here the maximum is exact. The code searches [0, H] by Nelder-Mead from H / 2.
 3. The code has no lower limit on Q, and sets Q to 0 in the known fail state. Here Q is at least 0, since
    rewards are, and no state is known to be the fail state.
 4. min V is over all states. In the code it is over the next states in the data (`least=data`), so that mass
    never moves to a state that was not seen.
 5. All kinds know the rewards r(s,a). In the code PEVI alone regresses r + V: `rewards=learned`.
 6. The ball has one radius. The code's DRPVI knows which factor is perturbed at which step.
 7. The code's main.py calls the ridge `k` and the scale `lam`, but the algorithms call them `lam` and `Rho`.
    Its defaults are those here: ridge 0.1, scale 0.1, beta 1, 100 episodes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from corerl import seeding
from corerl.config import Settings, at_least, one_of, positive
from corerl.nn.learner import Sizes, Spec
from corerl.risk.finite_mdp import FiniteMDP, first_best
from corerl.risk.robust import LinearModel, best_policy, policy_value, worst_case
from corerl.training.run import Run
from corerl.training.tabular import (
    Learners,
    TabularLearner,
    TabularPlayer,
    linear_model,
    model_of,
    play,
)


@dataclass
class Config(Settings):
    actions = "discrete"
    name: str = "r2pvi"
    label: str = "R2PVI"

    objective: str = one_of("robust", "mean")  # robust | mean, which kind sets and reports show
    kind: str = one_of(  # divergence tv | kl | chi2 | ball (tv up to scale) | none (PEVI)
        "tv", "kl", "chi2", "ball", "none"
    )
    scale: float = positive(0.1)  # price of the divergence, or the radius of the ball
    beta: float = at_least(0, 1.0)  # weight of the pessimism penalty
    ridge: float = positive(0.1)  # ridge penalty of the regressions
    penalty: str = one_of(  # factors (bounds each one's error) | authors (smaller)
        "factors", "authors"
    )
    least: str = one_of(  # min V over all states | over next states in the data (authors)
        "states", "data"
    )
    rewards: str = one_of(  # known | learned (by regression, as in authors' PEVI)
        "known", "learned"
    )

    def __post_init__(self):
        super().__post_init__()
        self.objective = "mean" if self.kind == "none" else "robust"

    def divergence(self) -> str:
        """Returns the name of the inner problem in corerl/risk/robust.py."""
        return "tv_ball" if self.kind == "ball" else self.kind


class R2PVI(TabularLearner):
    """One learner. Attributes: `counts` (H, S, A, S) of the data, and `table` (H, S), the plan's actions."""

    arrays = ("counts", "table")

    def __init__(self, cfg: Config, mdp: FiniteMDP, model: LinearModel, rng: np.random.Generator):
        self.cfg, self.mdp, self.model, self.rng = cfg, mdp, model, rng
        states, actions = mdp.sizes
        self.counts = np.zeros((model.steps, states, actions, states))
        self.table = np.zeros((model.steps, states), int)
        self.episodes = 0

    def episode(self) -> dict[str, float]:
        """Gathers an episode by uniform actions, and plans on all of them."""
        self.episodes += 1
        for h, (state, action, successor) in enumerate(play(self.mdp, None, self.rng)):
            self.counts[h, state, action, successor] += 1
        values = self.plan()
        nominal = policy_value(self.model, "none", 0.0, self.policy())[0]
        return {"planned": self.model.start @ values[0], "nominal": self.model.start @ nominal}

    def plan(self) -> np.ndarray:
        """Sets `table` by pessimistic backward induction, and returns the values `(H + 1, S)`."""
        steps, phi, cfg = self.model.steps, self.model.features, self.cfg
        values = np.zeros((steps + 1, len(self.model.start)))
        for h in reversed(range(steps)):
            inverse, measures = regression(self.counts[h], phi, cfg.ridge)
            nu = np.zeros(len(measures))
            if h < steps - 1:
                value = values[h + 1]
                if cfg.least == "data":
                    value = np.where(self.counts[h].any((0, 1)), value, value.max())
                nu = worst_case(cfg.divergence(), value, measures, cfg.scale, steps)
            rewards = self.model.rewards
            if cfg.rewards == "learned":
                seen = self.counts[h].sum(-1)
                rewards = phi @ inverse @ np.einsum("sa,sad,sa->d", seen, phi, rewards)
            form = "joint" if cfg.kind == "none" else cfg.penalty
            penalty = cfg.beta * uncertainty(phi, inverse, form)
            q = np.clip(rewards + self.model.discount * phi @ nu - penalty, 0, steps - h)
            self.table[h] = first_best(q)
            values[h] = q.max(1)
        return values

    def policy(self) -> np.ndarray:
        """Returns the plan's probabilities `(H, S, A)`."""
        return np.eye(self.mdp.sizes[1])[self.table]


def regression(counts: np.ndarray, phi: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns Lambda^-1 `(d, d)`, and the weights `(d, S)` by which m_i[f] = weights_i . f.

    `counts` `(S, A, S)` are the transitions seen.
    """
    seen = counts.sum(-1)
    gram = np.einsum("sa,sad,sae->de", seen, phi, phi) + ridge * np.eye(phi.shape[-1])
    inverse = np.linalg.inv(gram)
    return inverse, inverse @ np.einsum("sat,sad->dt", counts, phi)


def uncertainty(phi: np.ndarray, inverse: np.ndarray, form: str) -> np.ndarray:
    """Returns how little the data says of each state and action, `(S, A)`.

    factors: sum_i phi_i sqrt(Lambda^-1_ii). authors: sqrt(sum_i phi_i^2 Lambda^-1_ii). joint:
    sqrt(phi' Lambda^-1 phi).
    """
    own = np.diag(inverse)
    if form == "factors":
        return phi @ np.sqrt(own)
    if form == "authors":
        return np.sqrt(phi**2 @ own)
    return np.sqrt(np.einsum("sad,de,sae->sa", phi, inverse, phi))


def build(cfg: Config, spec: Spec) -> Learners:
    """Returns a learner for each seed, beside the robust optimum."""
    mdp, model = model_of(spec.make_env().unwrapped)
    rngs = [np.random.default_rng(seeding.derive(seed, "r2pvi")) for seed in spec.identities]
    learners = [R2PVI(cfg, mdp, model, rng) for rng in rngs]
    kind = cfg.divergence()
    worst = lambda l: model.start @ policy_value(model, kind, cfg.scale, l.policy())[0]  # noqa: E731
    optimum = model.start @ best_policy(model, kind, cfg.scale)[0][0]
    return Learners(learners, optimum, worst)


def parts(agent: Learners, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated."""
    policies = [lambda t, s, _, learner=l: learner.table[t, s] for l in agent.learners]
    return {"policy": TabularPlayer(agent.learners[0].mdp, policies)}


def train(cfg: Config, run: Run) -> None:
    linear_model(run.task)  # raises where robust learners cannot learn
    spec = run.spec(Sizes.of(run.task.make_env()))
    agent = build(cfg, spec)
    player = parts(agent, spec)["policy"]
    for step in run.steps(agent=agent):
        metrics = agent.update()
        metrics.pop("regret")  # nothing is played while learning
        run.log(step, metrics)
        run.evaluate(step, player)
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
