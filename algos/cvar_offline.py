"""Static CVaR from offline data: TD3+BC with the stock in actor and critic.

    CVaR_tau(G) = max_c { c - E[(c - G)^+] / tau },   c_0 = c,  c_{t+1} = (c_t - r_t) / discount

What a policy of the largest static CVaR must know besides the state is the stock c_t, what is still missing
(Bauerle and Ott 2011; corerl/risk). So the actor is pi(s, c), the critic the quantiles of the discounted
return to come when the policy acts on with the stock, Z(s, c, a), and the actor keeps the expected shortfall
E[(c - Z)^+] small. That does not depend on tau: one agent serves every level, and tau and the start stock
are chosen when it is played. An actor-critic with quantiles and a stock is Moghimi and Ku's
(arXiv:2507.03900), the stock-augmented return is Pires et al.'s (2025).

    python algos/cvar_offline.py task=risk/D2 steps=10000 seeds=3 algo.tau=0.25
    corerl train algo=cvar_offline task=risk/pointmass seeds=5 eval.episodes=400

What no paper says, and we chose:
 1. Stocks of the data. A transition says the same under every stock, so each row of a batch is seen with
    `stocks` of them, drawn independently of the row: half of the draws from the law of the data's discounted
    returns to go, half uniform on its range. A row's own return to go would not do as its stock, near as it
    is: it tells the row's reward in advance, and the critic would learn to read it there. (The stock that
    the recording had built up is independent of what follows, but needs the episode's past.)
 2. Stocks are kept to the range of the data's returns to go. Beyond it the shortfall is linear or nothing,
    so that the best action no longer depends on the stock; and division by the discount cannot make it
    overflow in long episodes.
 3. Start stock. It maximises c - E[(c - Z)^+] / tau over `start_stocks` even ones on that range, with Z at
    the first states of the data's episodes (64 at most) side by side: CVaR of the whole return, chance of the
    first state included. `start=own` chooses for each episode at its own first state, for tasks that
    begin elsewhere than their data; where first states differ in value, that is another objective.
 4. The critics' quantiles stand at the midpoints (QR-DQN), the target takes the smaller of both critics'
    quantiles, the actor asks the first critic (TD3, and Moghimi and Ku).
 5. `imitation` weighs TD3+BC's cloning term; 0 leaves it out, for data that cover every action. The data's
    action is the one target for all stocks, so that cloning pulls towards a stock-blind policy.
 6. Rewards in play are put on the learned scale before they change the stock, which a return range taken
    from the data would tie to this dataset: data.return_range is refused.

Static CVaR is the objective here; what O-RAAC and CODAC maximise is another (`naive`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from corerl.buffers.replay import Batch
from corerl.config import at_least, group, one_of, positive, require, within
from corerl.data.dataset import Dataset
from corerl.nn import compile, networks, optim
from corerl.nn.learner import GradientStep, Spec, Stateful
from corerl.nn.mlp_settings import MLPSettings
from corerl.nn.policies import smoothed
from corerl.risk.quantiles import midpoints, quantile_regression
from corerl.risk.stock_augmentation import next_stock, shortfall, start_stock
from corerl.training import preprocessing, risk_summary
from corerl.training.offline_stocks import OfflineStockPlayer, ReturnsToGo, first_states
from corerl.training.run import Run

LEVELS = 1024


@dataclass
class Config(MLPSettings):
    name: str = "cvar_offline"
    label: str = "Static CVaR (TD3+BC)"

    objective: str = one_of("static")  # static CVaR of the whole return (the only choice)
    tau: float = within(0.1, "(0, 1]")  # CVaR level, share of worst returns (unused in training)
    start: str = one_of("data", "own")  # data (one first stock for all episodes) | own (one each)
    start_stocks: int = positive(257)  # evenly spaced candidates for the first stock
    stocks: int = positive(4)  # random stocks (returns to reach) paired with each row

    alpha: float = positive(2.5)  # weight of the shortfall against imitation (TD3+BC, eq. 5)
    imitation: float = at_least(0, 1.0)  # weight of imitation in the actor's loss (0: none)
    fractions: int = positive(50)  # number of quantiles of each critic
    kappa: float = at_least(0, 0.0)  # error above which the quantile loss is linear (0: always)
    discount: float = within(0.99, "(0, 1]")
    polyak: float = within(0.005, "[0, 1]")  # share of new weights in targets, at each actor update
    policy_noise: float = at_least(0, 0.2)  # standard deviation of the noise on the target action
    noise_clip: float = at_least(0, 0.5)  # bound at which noise on the target action is clipped
    policy_delay: int = positive(2)  # critic updates per actor update

    lr: float = positive(3e-4)  # learning rate of actor and critics
    cosine: bool = False  # learning rates of actor and critics decay to 0 over the run
    batch_size: int = positive(256)
    hidden_layers: int = at_least(0, 2)
    hidden_width: int = positive(256)
    data: preprocessing.Preprocess = group(preprocessing.Preprocess, normalize_states=True)

    def __post_init__(self):
        super().__post_init__()
        require(
            not self.data.return_range,
            "algo.data.return_range=true scales rewards by the dataset's returns, but the environment's "
            "rewards need a fixed scale. Use algo.data.reward_scale",
        )
        require(
            self.data.rewards == "data",
            f"algo.data.rewards={self.data.rewards} replaces the dataset's rewards, but the policy follows "
            "the environment's rewards. Leave algo.data.rewards out",
        )


class Stocks(nn.Module):
    """The law that stocks are drawn from: uniform between neighbours of `levels` (LEVELS + 1,), ascending.

    Args:
        to_go: the data's discounted returns to go, `(N,)`.
    """

    def __init__(self, to_go: np.ndarray):
        super().__init__()
        half = LEVELS // 2
        like_data = np.quantile(to_go, np.linspace(0, 1, half + 1))
        even = np.linspace(to_go.min(), to_go.max(), half)
        levels = np.sort(np.concatenate([like_data, even]))
        self.register_buffer("levels", torch.as_tensor(levels, dtype=torch.get_default_dtype()))

    def draw(self, uniforms: Tensor) -> Tensor:
        """Draws stocks by uniform numbers of any shape."""
        places = uniforms * LEVELS
        below = places.long().clamp(max=LEVELS - 1)
        low, high = self.levels[below], self.levels[below + 1]
        return low + (places - below) * (high - low)

    def evenly_spaced(self, count: int) -> Tensor:
        """Returns `count` stocks from the lowest to the highest, evenly spaced."""
        steps = torch.linspace(0, 1, count, device=self.levels.device, dtype=self.levels.dtype)
        return self.levels[0] + steps * (self.levels[-1] - self.levels[0])

    def next(self, stock: Tensor, rewards: Tensor, discount: float) -> Tensor:
        """Returns c_{t+1}, kept to the range."""
        return next_stock(stock, rewards, discount).clamp(self.levels[0], self.levels[-1])

    def feature(self, stock: Tensor) -> Tensor:
        """Scales stocks for a network: the range becomes [-1, 1]. `(...)` to `(..., 1)`."""
        low, high = self.levels[0], self.levels[-1]
        return ((2 * stock - low - high) / (high - low).clamp(min=1e-6))[..., None]


class CVaROffline(Stateful):
    """Static CVaR (TD3+BC) agents of S seeds, trained together.

    Args:
        to_go: `(N,)`, the data's discounted returns to go, on the learned scale; None for an agent that is
            loaded, whose state has the stocks.
    """

    def __init__(self, cfg: Config, spec: Spec, to_go: np.ndarray | None = None):
        self.cfg = cfg
        inputs, A, device = spec.observation_dim + 1, spec.action_dim, spec.device
        hidden = [cfg.hidden_width] * cfg.hidden_layers
        actor = networks.MLP([inputs, *hidden, A], spec.lead, spec.rngs, **cfg.mlp_options)
        self.actor = actor.to(device)
        sizes = [inputs + A, *hidden, cfg.fractions]
        self.critic = networks.MLP(sizes, (spec.seeds, 2), spec.rngs, **cfg.mlp_options).to(device)
        self.target_actor = optim.target_of(self.actor)
        self.target_critic = optim.target_of(self.critic)
        self.stocks = Stocks(np.zeros(1) if to_go is None else to_go).to(device)
        self.normalizer = spec.normalizer
        self._fractions = midpoints(cfg.fractions, device)
        actor = self.actor_optimizer = optim.Adam(self.actor.parameters(), cfg.lr)
        critic = self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        calls = spec.steps // cfg.policy_delay if cfg.cosine else None
        schedules = optim.cosine_schedules(calls, actor, critic)
        self.actor_schedule, self.critic_schedule = schedules
        self._actor_step = GradientStep(self.actor_loss, actor, spec.mode, schedules)
        self._critic_step = GradientStep(self.critic_loss, critic, spec.mode)

    # Losses. Batch fields are (S, R, ...), every row with its stock (S, R); each loss is (S,).

    def critic_loss(
        self, batch: Batch, stock: Tensor, noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Quantiles of r + discount * Z'(s', c', pi'(s', c')). `noise` (S, R, A) is standard normal."""
        cfg = self.cfg
        with torch.no_grad():
            s, c = batch.next_observations, self.stocks.next(stock, batch.rewards, cfg.discount)
            action = self._pi(self.target_actor, s, c)
            action = smoothed(action, noise, cfg.policy_noise, cfg.noise_clip)
            next_z = self._z(self.target_critic, s, c, action).amin(1)
            discounts = cfg.discount * (1 - batch.terminated[..., None])
            y = batch.rewards[..., None] + discounts * next_z
        z = self._z(self.critic, batch.observations, stock, batch.actions)
        losses = quantile_regression(z, y[:, None].expand_as(z), self._fractions, cfg.kappa)
        loss = losses.mean(-1).sum(1)
        return loss, {"critic_loss": loss, "value": z.mean((1, 2, 3))}

    def actor_loss(self, batch: Batch, stock: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Adds the expected shortfall of Z(s, c, pi(s, c)) and the distance to the data's action."""
        actions = self._pi(self.actor, batch.observations, stock)
        z = self._z(self.critic, batch.observations, stock, actions)[:, 0]
        short = shortfall(z, stock).mean(-1)
        weight = self.cfg.alpha / short.detach().clamp(min=1e-6)
        imitation = (actions - batch.actions).square().mean((1, 2))
        loss = self.cfg.imitation * imitation + weight * short
        return loss, {"actor_loss": loss, "shortfall": short, "imitation_loss": imitation}

    def _pi(self, actor: nn.Module, observations: Tensor, stock: Tensor) -> Tensor:
        return torch.tanh(actor(torch.cat([observations, self.stocks.feature(stock)], -1)))

    def _z(self, critic: nn.Module, observations: Tensor, stock: Tensor, actions: Tensor) -> Tensor:
        """Returns both critics' quantiles, `(S, 2, R, N)`."""
        return critic(torch.cat([observations, self.stocks.feature(stock), actions], -1)[:, None])

    def update(
        self, batches: list[Batch], uniforms: list[Tensor], noises: list[Tensor]
    ) -> dict[str, Tensor]:
        """Takes one critic step per batch, then one of the actor and the targets on the last batch.

        `uniforms` (S, J * B) draw the stocks of J copies of the batch, `noises` are (S, J * B, A).
        """
        for batch, u, noise in zip(batches, uniforms, noises, strict=True):
            copies, stock = _copies(batch, self.cfg.stocks), self.stocks.draw(u)
            metrics = self._critic_step(copies, stock, noise)
        metrics |= self._actor_step(copies, stock)
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        return metrics

    # Play. Observations are raw, stocks on the learned scale.

    @torch.no_grad()
    def act(self, observations: Tensor, stock: Tensor) -> Tensor:
        """Returns the action at `(S, n, O)` and stocks `(S, n)`: `(S, n, A)`."""
        return self._pi(self.actor, self.normalizer(observations), stock)

    @torch.no_grad()
    def start_stock(self, first: Tensor, tau: float) -> tuple[Tensor, Tensor]:
        """Returns the best stock `(S,)` for first states `(S, F, O)`, and the CVaR that it promises."""
        seeds, states, _ = first.shape
        stocks = self.stocks.evenly_spaced(self.cfg.start_stocks)
        grid = stocks.repeat_interleave(states).expand(seeds, -1)
        s = self.normalizer(first).repeat(1, len(stocks), 1)
        z = self._z(self.critic, s, grid, self._pi(self.actor, s, grid)).mean(1)
        return start_stock(z.view(seeds, len(stocks), -1), stocks.expand(seeds, -1), tau)


def _copies(batch: Batch, count: int) -> Batch:
    """Repeats the rows of a batch `count` times, one copy after the other."""
    return Batch(*(x.repeat(1, count, *[1] * (x.ndim - 2)) for x in batch))


build = CVaROffline


def parts(agent: CVaROffline, spec: Spec) -> dict[str, Any]:
    """Returns the policy that is evaluated."""
    first = spec.facts["first"] if agent.cfg.start == "data" else None
    return {"policy": OfflineStockPlayer(agent, agent.cfg.tau, first)}


def facts(cfg: Config, dataset: Dataset) -> dict[str, Any]:
    """Returns the first states of the data, for which the first stock is chosen."""
    return {"first": first_states(dataset.ended_by(cfg.data.end_reward))}


def train(cfg: Config, run: Run) -> None:
    returns = ReturnsToGo(cfg.discount)
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size, labels=returns)
    spec = run.spec(buffer, normalizer, facts={"first": returns.first.to(run.device)})
    agent = CVaROffline(cfg, spec, returns.to_go)
    player = parts(agent, spec)["policy"]
    rows = cfg.stocks * cfg.batch_size
    stocks = run.uniform("stocks", rows, block=64)
    noise = run.normal("noise", rows, buffer.action_dim, block=64)
    update = compile.captured(agent.update, run.mode)
    delay = range(cfg.policy_delay)
    state = {"agent": agent, "buffer": buffer, "stocks": stocks, "noise": noise}
    for step in run.steps(stride=cfg.policy_delay, **state):
        draws = ([stream.next() for _ in delay] for stream in (stocks, noise))
        metrics = update([buffer.sample() for _ in delay], *draws)
        run.log(step, metrics)
        run.evaluate(step, player)
        run.save(step)
    risk_summary.print_summary(run)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
