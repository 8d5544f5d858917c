"""Policy gradients for static risk: CVaR, CeSoR, convex scoring functions and ECRM.

CVaR is of Tamar et al. 2015 (arXiv:1404.3862), CeSoR of Greenberg et al. 2022 (arXiv:2205.05138). Scoring
functions are of Han et al. 2025 (arXiv:2505.04553), and ECRM is of Yu and Shen 2022 and Yu and Ying 2023
(arXiv:2301.10932).

X is the discounted return of an episode, higher is better. Each static `objective` is a risk that is the
least expected score of X with an auxiliary number v, so that with u = X - v

    objective       risk, to be made small             score f, risk = min_v E f              the best v
    cvar            -CVaR_tau(X)                       (-u)^+ / tau - v                       a tau-quantile
    variance        Var X                              u^2                                    E X
    mean_variance   -E X + weight Var X                -u + weight u^2 - v                    E X
    entropic        log E[exp(-beta X)] / beta         (exp(-beta u) - 1) / beta - v          -risk
    mean            -E X                               -u - v                                 any

(cvar is Rockafellar and Uryasev's; entropic: the derivative in v is E exp(-beta u) - 1.) At the best v the
risk's gradient is that of E f with v held (envelope theorem), so an episode's score is a cost at its end
and the policy follows the likelihood-ratio gradient, E[sum_t grad log pi_t (f - baseline_t)]. For cvar that
is GCVaR: episodes above the quantile count nothing, those below by their distance. In turn v becomes
the best one for the episodes just played.

`objective=ecrm` sums one-step risks, with a further action eta: corerl/risk/conditional_risk.py.

    python algos/cvar_pg.py task=risk/D2 algo.tau=0.25 seeds=3
    corerl train -m algo=cvar_pg task=risk/arbitrage algo.objective=cvar,variance,mean_variance,mean

One step of a run is one batch of `episodes` episodes and one update from it.

What differs, and its switch (GCVaR: Tamar et al.).

    item             papers                                ours                                switch
 1  policy's input   GCVaR, CeSoR: the state; Han et al.:  besides the state (v - collected)   augment
                     and cost so far and v, of which only  / discount^t and discount^t, which
                     the difference matters                the best policy depends on
 2  v of episodes    GCVaR: one for all; Han et al.: each  either                              v_std,
                     its own, normal around the common                                         v_std_final
                     one and narrowing
 3  v of a batch     GCVaR, CeSoR: its own quantile, and   found before it was played; 1/tau   -
                     divided by the share of episodes kept
 4  at an atom       CeSoR's code: optimistic_q            the upper quantile, so that those   -
                                                           below it still tell good from bad
 5  level            CeSoR: falls from 1, and harder       falls linearly over this share of   soft
                     episodes by the cross-entropy method  the run; no harder episodes, which
                                                           need environments with such a knob
 6  baseline         GCVaR: none; Han et al.: a critic     a value of state and stock; trace   trace
                     with target V(next), trace=0          1 is the unbiased gradient
 7  spread           -                                     falls, not learned: a score has no  std, std_final
                                                           gradient for it that does not
                                                           chase noise; played is the mean
 8  ECRM's eta       drawn jointly with the action         independently given state and eta,  etas, low, high
                                                           one of `etas` values in a range
 9  steps per batch  Han et al.: 5 of the critic           Adam: 1 of the policy, and          critic_updates
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from corerl.config import Settings, at_least, one_of, positive, require, within
from corerl.nn import compile, networks, optim, policies
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.risk.conditional_risk import ConditionalRisk
from corerl.training.rollouts import STOCK_LIMIT, Collector, Played, RiskPlayer
from corerl.training.run import Run


@dataclass
class Config(Settings):
    actions = "any"
    name: str = "cvar_pg"
    label: str = "CVaR policy gradient"

    objective: str = one_of(  # risk of the return to minimise (ecrm: sum of one-step risks)
        "cvar", "variance", "mean_variance", "entropic", "mean", "ecrm"
    )
    tau: float | None = within(0.25, "(0, 1]")  # share of worst returns in cvar, ecrm (1: the mean)
    weight: float = at_least(0, 1.0)  # weight of variance (mean_variance) or CVaR (ecrm, up to 1)
    beta: float = positive(1.0)  # risk aversion in log E[exp(-beta X)] / beta (entropic)
    soft: float = within(0.0, "[0, 1]")  # first share of the run, in which tau falls from 1
    augment: bool = True  # policy also sees the stock (v - rewards so far) / discount^t
    v_std: float = at_least(0, 0.0)  # std of the auxiliary v over episodes, at the start
    v_std_final: float = at_least(0, 0.0)  # std of the auxiliary v over episodes, at the end
    v_rate: float = within(1.0, "[0, 1]")  # step of v towards the batch's best v (1: all the way)
    eta: str = one_of("ahead", "now")  # ecrm's eta is chosen ahead (by a step, paper) | now
    etas: int = at_least(2, 21)  # number of values of eta, from low to high (ecrm)
    low: float | None = None  # lower bound of a step's reward (ecrm)
    high: float | None = None  # upper bound of a step's reward (ecrm)

    discount: float = within(1.0, "(0, 1]")
    episodes: int = positive(100)  # episodes per seed and update
    max_steps: int = positive(1_000)  # steps after which an episode is truncated
    scale: float = positive(1.0)  # networks see and predict returns divided by this
    trace: float = within(1.0, "[0, 1]")  # lambda of GAE (1: no bootstrap)
    entropy: float = at_least(0, 0.0)  # weight of the policy's entropy bonus (discrete actions)
    std: float = positive(0.5)  # std of a Gaussian policy at the start of the run
    std_final: float = positive(0.05)  # std of a Gaussian policy at the end of the run
    lr: float = positive(3e-3)  # learning rate of the policy
    critic_lr: float = positive(3e-3)
    cosine: bool = True  # learning rates of policy and critic decay to 0 over the run
    critic_updates: int = positive(5)  # critic updates per policy update
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(64)

    def __post_init__(self):
        if self.objective not in ("cvar", "ecrm"):
            self.tau = None
        super().__post_init__()
        tailed = self.objective in ("cvar", "ecrm")
        require(self.tau is not None or not tailed, "algo.tau=None must lie in (0, 1]")
        if self.objective == "ecrm":
            require(
                self.weight <= 1,
                f"algo.weight={self.weight} must lie in [0, 1] with algo.objective=ecrm",
            )
            require(
                None not in (self.low, self.high) and self.low < self.high,
                f"algo.low={self.low}, algo.high={self.high}: set these to the lowest and highest "
                "reward of a step. algo.objective=ecrm chooses eta between the two",
            )


class Level(NamedTuple):
    """What changes over a run, each `()`: the tail, the spread of a Gaussian policy and of v."""

    tau: Tensor
    std: Tensor
    v_std: Tensor

    @classmethod
    def at(cls, cfg: Config, share: float, device: torch.device | str = "cpu") -> "Level":
        """Returns the level at this share of the run."""
        tau = 1.0 if cfg.tau is None else cfg.tau
        if cfg.soft > share:
            tau = 1 - (1 - tau) * share / cfg.soft
        std = cfg.std * (cfg.std_final / cfg.std) ** share
        v_std = cfg.v_std + (cfg.v_std_final - cfg.v_std) * share
        return cls(*(torch.tensor(x, device=device) for x in (tau, std, v_std)))


class ScoringFunction:
    """f of one objective. `weight` is mean_variance's, `beta` entropic's."""

    def __init__(self, objective: str, weight: float, beta: float):
        self.objective, self.weight, self.beta = objective, weight, beta

    def score(self, u: Tensor, tau: Tensor) -> Tensor:
        """Returns f without its -v, of u = X - v of any shape. `tau` `()` is cvar's."""
        if self.objective == "cvar":
            return (-u).clamp(min=0) / tau
        if self.objective == "variance":
            return u.square()
        if self.objective == "mean_variance":
            return self.weight * u.square() - u
        if self.objective == "entropic":
            return torch.expm1(-self.beta * u) / self.beta
        return -u

    def best_v(self, returns: Tensor, tau: Tensor) -> Tensor:
        """Returns the v `(S,)` of the least mean score of returns `(S, E)`, the largest of several."""
        if self.objective == "entropic":
            worst = torch.logsumexp(-self.beta * returns, -1) - math.log(returns.shape[-1])
            return -worst / self.beta
        if self.objective == "cvar":
            count = returns.shape[-1]
            place = (tau * count + 1e-6).long().clamp(max=count - 1)  # 0.3 * 10 is a whole number
            return returns.sort(-1).values.index_select(-1, place.view(1)).squeeze(-1)
        return returns.mean(-1)


class CVaRPG(Stateful):
    """CVaR policy gradient agents of S seeds, trained together."""

    def __init__(self, cfg: Config, spec: Spec):
        self.cfg, device = cfg, spec.device
        sizes = [spec.observation_dim + 2, *[cfg.hidden_width] * cfg.hidden_layers]
        counts = (spec.action_dim, cfg.etas if cfg.objective == "ecrm" else 0)
        policy = policies.CompoundPolicy(sizes, counts, spec.discrete, spec.rngs)
        self.policy = policy.to(device)
        critic = networks.MLP([*sizes, 1], spec.lead, spec.rngs, activation=torch.tanh)
        self.critic = critic.to(device)
        self.v = networks.Scalar(0.0, spec.seeds).requires_grad_(False).to(device)
        pi = self.policy_optimizer = optim.Adam(self.policy.parameters(), cfg.lr)
        q = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.critic_lr)
        steps = spec.steps if cfg.cosine else None
        (self.schedule,) = optim.cosine_schedules(steps, pi)
        (self.critic_schedule,) = optim.cosine_schedules(steps and steps * cfg.critic_updates, q)
        self._policy_step = GradientStep(self.policy_loss, pi, spec.mode, self.schedule)
        self._critic_step = GradientStep(self.critic_loss, q, spec.mode, self.critic_schedule)
        self.risk = ScoringFunction(cfg.objective, cfg.weight * cfg.scale, cfg.beta * cfg.scale)
        self.ecrm: ConditionalRisk | None = None
        if cfg.objective == "ecrm":
            low, high = cfg.low / cfg.scale, cfg.high / cfg.scale
            values = torch.linspace(low, high, cfg.etas, device=device)
            self.ecrm = ConditionalRisk(values, cfg.weight, cfg.discount, cfg.eta == "ahead")
        powers = torch.arange(cfg.max_steps, device=device, dtype=torch.get_default_dtype())
        tiny = torch.finfo(powers.dtype).tiny  # no stock is 0 / 0
        self._powers = (cfg.discount**powers).clamp(min=tiny)
        self.gamma = cfg.discount if self.ecrm else 1.0
        lag = powers - powers[:, None]
        self._decay = torch.where(lag >= 0, (self.gamma * cfg.trace) ** lag.clamp(min=0), 0.0)

    # What is optimised. Rewards are in units of `scale`, `(S, E, T)`.

    def scored(self, played: Played, v: Tensor, etas: Tensor, tau: Tensor) -> Tensor:
        """Returns what the policy maximises the sum of: minus the score at the end, or ECRM's rewards."""
        rewards = played.rewards / self.cfg.scale
        if self.ecrm:
            return self.ecrm.rewards(rewards, etas, played.alive, played.last, tau)
        u = (self._powers * rewards).sum(-1) - v
        return -self.risk.score(u, tau)[..., None] * played.last

    def memory(self, played: Played, v: Tensor, etas: Tensor) -> Tensor:
        """Returns what the policy knew besides the state, `(S, E, T, 2)`: see `RiskPlayer`."""
        if self.ecrm:
            return self.ecrm.memory(etas)
        if not self.cfg.augment:
            return played.rewards.new_zeros(*played.rewards.shape, 2)
        collected = (self._powers * played.rewards / self.cfg.scale).cumsum(-1)
        before = F.pad(collected[..., :-1], (1, 0))
        stock = ((v[..., None] - before) / self._powers).clamp(-STOCK_LIMIT, STOCK_LIMIT)
        return torch.stack([stock, self._powers.expand_as(stock)], -1) * played.alive[..., None]

    # Losses. Inputs are (S, E, T, O + 2), the others (S, E, T); each loss is (S,).

    def policy_loss(self, inputs, played: Played, etas, advantages, std):
        """Computes the likelihood-ratio loss of the scored sum, less `entropy` times the policy's entropy."""
        flat = (inputs, played.actions, etas)
        log_prob, entropy = self.policy.log_prob(*(x.flatten(1, 2) for x in flat), std)
        shape = advantages.shape
        weights = played.alive * (self._powers if self.gamma < 1 else 1.0)
        gain = log_prob.view(shape) * advantages + self.cfg.entropy * entropy.view(shape)
        loss = -(weights * gain).sum(-1).mean(-1)
        mean = (entropy.view(shape) * played.alive).sum((1, 2)) / played.alive.sum((1, 2))
        return loss, {"policy_loss": loss, "entropy": mean}

    def critic_loss(self, inputs: Tensor, targets: Tensor, alive: Tensor):
        """Computes the squared error of the value of what is still to come."""
        error = (self.value(inputs) - targets).square() * alive
        loss = error.sum((1, 2)) / alive.sum((1, 2))
        return loss, {"critic_loss": loss}

    def value(self, inputs: Tensor) -> Tensor:
        return self.critic(inputs.flatten(1, 2)).view(inputs.shape[:3])

    @torch.no_grad()
    def advantages(self, inputs: Tensor, gained: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
        """Computes advantages with traces of lambda, and the critic's targets (Schulman et al. 2016)."""
        values = self.value(inputs) * alive
        following = F.pad(values[..., 1:], (0, 1))
        delta = gained + self.gamma * following - values
        advantages = delta @ self._decay.T
        return advantages, advantages + values

    def update(self, played: Played, v: Tensor, etas: Tensor, level: Level) -> dict[str, Tensor]:
        """Takes one step of the policy and `critic_updates` of the critic, and finds the next v.

        `v` (S, E) and `etas` (S, E, T) are those that the episodes were played with.
        """
        gained = self.scored(played, v, etas, level.tau)
        inputs = torch.cat([played.observations, self.memory(played, v, etas)], -1)
        advantages, targets = self.advantages(inputs, gained, played.alive)
        metrics = self._policy_step(inputs, played, etas, advantages, level.std)
        for _ in range(self.cfg.critic_updates):
            critic_metrics = self._critic_step(inputs, targets, played.alive)
        return metrics | critic_metrics | self._next_v(played, gained, level.tau)

    @torch.no_grad()
    def _next_v(self, played: Played, gained: Tensor, tau: Tensor) -> dict[str, Tensor]:
        returns = (self._powers * played.rewards).sum(-1)
        if self.ecrm:
            discounted = self._powers * gained * self.cfg.scale
            return {"return": returns.mean(-1), "risk": -discounted.sum(-1).mean(-1)}
        scaled = returns / self.cfg.scale
        best = self.risk.best_v(scaled, tau)
        self.v.value.lerp_(best, self.cfg.v_rate)
        risk = self.risk.score(scaled - best[:, None], tau).mean(-1)
        unit = self.cfg.scale**2 if self.cfg.objective == "variance" else self.cfg.scale
        risk = risk if self.cfg.objective == "variance" else risk - best
        return {"return": returns.mean(-1), "risk": unit * risk, "v": self.cfg.scale * self.v()}


build = CVaRPG


def parts(agent: CVaRPG, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated."""
    return {"policy": RiskPlayer(agent)}


def train(cfg: Config, run: Run) -> None:
    sizes = (cfg.episodes, cfg.max_steps)
    collector = Collector(run.task.make_env, run.seeds, *sizes, run.device, cfg.discount)
    agent = CVaRPG(cfg, run.spec(collector))
    width = 2 if collector.discrete else collector.action_dim + 1
    shape = (cfg.max_steps + 1, cfg.episodes, width)
    noise = run.normal("noise", *shape, block=1)
    update = compile.captured(agent.update, run.mode)
    for step in run.steps(agent=agent, collector=collector, noise=noise):
        level = Level.at(cfg, (step - 1) / run.cfg.steps, run.device)
        player = RiskPlayer(agent, level, noise.next())
        played = collector.play(player)
        etas = torch.stack(player.etas, -1)
        etas = F.pad(etas, (0, cfg.max_steps - etas.shape[-1]))
        run.log(step, update(played, player.v, etas, level))
        run.evaluate(step, RiskPlayer(agent))
        run.save(step)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
