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

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from corerl import seeding
from corerl.buffers.replay import Batch
from corerl.config import require
from corerl.data.dataset import Dataset
from corerl.nn import compile, networks, optim
from corerl.nn.learner import Stateful
from corerl.risk.quantiles import huber_quantile_loss, midpoints, quantile_loss
from corerl.risk.stock_augmentation import next_stock, shortfall, start_stock
from corerl.training import preprocessing, risk_summary
from corerl.training.run import Run

LEVELS = 1024
FIRST_STATES = 64


@dataclass
class Config:
    name: str = "cvar_offline"
    label: str = "Static CVaR (TD3+BC)"

    objective: str = "static"  # CVaR of the whole return: the only one here, named for reports
    tau: float = 0.1  # the share of worst returns that counts; only play depends on it
    start: str = "data"  # stock: data (one for all episodes) | own (each at its first state)
    start_stocks: int = 257  # tried at the start
    stocks: int = 4  # with which each row of a batch is seen

    alpha: float = 2.5  # weight of the shortfall against imitation, TD3+BC's eq. 5
    imitation: float = 1.0  # weight of cloning; 0: none
    fractions: int = 50  # quantiles of each critic
    kappa: float = 0.0  # where the squared error turns into the absolute one; 0: always absolute
    discount: float = 0.99
    polyak: float = 0.005  # share of the new networks in their targets, at each actor update
    policy_noise: float = 0.2  # smoothing of the target action: std, and where it is clipped
    noise_clip: float = 0.5
    policy_delay: int = 2  # critic updates per actor update

    lr: float = 3e-4  # of actor and critics
    cosine: bool = False  # both rates decay to 0 over the run
    batch_size: int = 256
    hidden_layers: int = 2
    hidden_width: int = 256
    data: preprocessing.Preprocess = field(
        default_factory=lambda: preprocessing.Preprocess(normalize_states=True)
    )

    def __post_init__(self):
        require(self.objective == "static", f"algo.objective={self.objective} is not static")
        require(0 < self.tau <= 1, f"algo.tau={self.tau} must lie in (0, 1]")
        require(self.start in ("data", "own"), f"algo.start={self.start} is not data or own")
        for name in ("start_stocks", "stocks", "fractions", "policy_delay", "alpha", "discount"):
            value = getattr(self, name)
            require(value > 0, f"algo.{name}={value} must be positive")
        for name in ("imitation", "kappa"):
            value = getattr(self, name)
            require(value >= 0, f"algo.{name}={value} must not be negative")
        require(
            not self.data.return_range,
            "algo.data.return_range=true ties rewards to the data, and stocks change with rewards in "
            "play; use algo.data.reward_scale",
        )


class Stocks(nn.Module):
    """Which stocks there are: `levels` (LEVELS + 1,) ascending, of which draws take any between two.

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
        """Stocks of uniform draws, of any shape."""
        places = uniforms * LEVELS
        below = places.long().clamp(max=LEVELS - 1)
        low, high = self.levels[below], self.levels[below + 1]
        return low + (places - below) * (high - low)

    def even(self, count: int) -> Tensor:
        """`count` stocks from the lowest to the highest, evenly spaced."""
        steps = torch.linspace(0, 1, count, device=self.levels.device, dtype=self.levels.dtype)
        return self.levels[0] + steps * (self.levels[-1] - self.levels[0])

    def after(self, stock: Tensor, rewards: Tensor, discount: float) -> Tensor:
        """c_{t+1}, kept to the range."""
        return next_stock(stock, rewards, discount).clamp(self.levels[0], self.levels[-1])

    def feature(self, stock: Tensor) -> Tensor:
        """What a network is told: the range becomes [-1, 1]; `(...)` to `(..., 1)`."""
        low, high = self.levels[0], self.levels[-1]
        return ((2 * stock - low - high) / (high - low).clamp(min=1e-6))[..., None]


class CVaROffline(Stateful):
    """S independent learners. `observation_dim`, `action_dim`: features; `rngs`: one per seed.

    `to_go` `(N,)`: the data's discounted returns to go, on the learned scale. `steps`: updates to come.
    """

    def __init__(
        self,
        cfg: Config,
        observation_dim: int,
        action_dim: int,
        rngs: list[torch.Generator],
        *,
        to_go: np.ndarray,
        steps: int,
        normalizer: networks.Normalizer | None = None,
        device: torch.device | str = "cpu",
        mode: str = "off",
    ):
        self.cfg = cfg
        hidden, inputs = [cfg.hidden_width] * cfg.hidden_layers, observation_dim + 1
        actor = networks.MLP([inputs, *hidden, action_dim], (len(rngs),), rngs)
        sizes = [inputs + action_dim, *hidden, cfg.fractions]
        self.actor = actor.to(device)
        self.critic = networks.MLP(sizes, (len(rngs), 2), rngs).to(device)
        self.target_actor = optim.target_of(self.actor)
        self.target_critic = optim.target_of(self.critic)
        self.stocks = Stocks(to_go).to(device)
        self.normalizer = normalizer or nn.Identity()
        self._fractions = midpoints(cfg.fractions, device)
        self.actor_optimizer = optim.Adam(self.actor.parameters(), cfg.lr)
        self.critic_optimizer = optim.Adam(self.critic.parameters(), cfg.lr)
        if cfg.cosine:
            calls = steps // cfg.policy_delay
            self.actor_schedule = optim.Schedule(self.actor_optimizer, optim.cosine(calls))
            self.critic_schedule = optim.Schedule(self.critic_optimizer, optim.cosine(calls))
        actor, critic = self.actor_optimizer.parameters, self.critic_optimizer.parameters
        self._actor_gradients = compile.gradients(self.actor_loss, actor, mode)
        self._critic_gradients = compile.gradients(self.critic_loss, critic, mode)

    # Losses. Batch fields are (S, R, ...), every row with its stock (S, R); each loss is (S,).

    def critic_loss(
        self, batch: Batch, stock: Tensor, noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Quantiles of r + discount * Z'(s', c', pi'(s', c')); `noise` (S, R, A) is standard normal."""
        cfg = self.cfg
        with torch.no_grad():
            s, left = batch.next_observations, self.stocks.after(stock, batch.rewards, cfg.discount)
            smoothing = (noise * cfg.policy_noise).clamp(-cfg.noise_clip, cfg.noise_clip)
            action = (self._pi(self.target_actor, s, left) + smoothing).clamp(-1, 1)
            next_z = self._z(self.target_critic, s, left, action).amin(1)
            discounts = cfg.discount * (1 - batch.terminated[..., None])
            y = batch.rewards[..., None] + discounts * next_z
        z = self._z(self.critic, batch.observations, stock, batch.actions)
        loss = self._regression(z, y[:, None].expand_as(z)).mean(-1).sum(1)
        return loss, {"critic_loss": loss, "value": z.mean((1, 2, 3))}

    def _regression(self, z: Tensor, y: Tensor) -> Tensor:
        if self.cfg.kappa == 0:
            return quantile_loss(z, y, self._fractions)
        return huber_quantile_loss(z, y, self._fractions, self.cfg.kappa)

    def actor_loss(self, batch: Batch, stock: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The expected shortfall of Z(s, c, pi(s, c)), and the distance to the data's action."""
        actions = self._pi(self.actor, batch.observations, stock)
        z = self._z(self.critic, batch.observations, stock, actions)[:, 0]
        missing = shortfall(z, stock).mean(-1)
        weight = self.cfg.alpha / missing.detach().clamp(min=1e-6)
        imitation = (actions - batch.actions).square().mean((1, 2))
        loss = self.cfg.imitation * imitation + weight * missing
        return loss, {"actor_loss": loss, "shortfall": missing, "imitation_loss": imitation}

    def _pi(self, actor: nn.Module, observations: Tensor, stock: Tensor) -> Tensor:
        return torch.tanh(actor(torch.cat([observations, self.stocks.feature(stock)], -1)))

    def _z(self, critic: nn.Module, observations: Tensor, stock: Tensor, actions: Tensor) -> Tensor:
        """Both critics' quantiles, `(S, 2, R, N)`."""
        return critic(torch.cat([observations, self.stocks.feature(stock), actions], -1)[:, None])

    def update(
        self, batches: list[Batch], uniforms: list[Tensor], noises: list[Tensor]
    ) -> dict[str, Tensor]:
        """One critic update per batch, then one of the actor and the targets on the last batch.

        `uniforms` (S, J * B) draw the stocks of J copies of the batch, `noises` are (S, J * B, A).
        """
        for batch, u, noise in zip(batches, uniforms, noises, strict=True):
            seen, stock = _copies(batch, self.cfg.stocks), self.stocks.draw(u)
            grads, metrics = self._critic_gradients(seen, stock, noise)
            self.critic_optimizer.step(grads)
        grads, more = self._actor_gradients(seen, stock)
        self.actor_optimizer.step(grads)
        if self.cfg.cosine:
            self.actor_schedule.step()
            self.critic_schedule.step()
        optim.polyak(self.target_critic, self.critic, self.cfg.polyak)
        optim.polyak(self.target_actor, self.actor, self.cfg.polyak)
        return metrics | more

    # Play. Observations are raw, stocks on the learned scale.

    @torch.no_grad()
    def act(self, observations: Tensor, stock: Tensor) -> Tensor:
        """The action at `(S, n, O)` and stocks `(S, n)`: `(S, n, A)`."""
        return self._pi(self.actor, self.normalizer(observations), stock)

    @torch.no_grad()
    def start_stock(self, first: Tensor, tau: float) -> tuple[Tensor, Tensor]:
        """The best stock `(S,)` for episodes from first states `(S, F, O)`, and the CVaR it promises."""
        seeds, states, _ = first.shape
        stocks = self.stocks.even(self.cfg.start_stocks)
        grid = stocks.repeat_interleave(states).expand(seeds, -1)
        s = self.normalizer(first).repeat(1, len(stocks), 1)
        z = self._z(self.critic, s, grid, self._pi(self.actor, s, grid)).mean(1)
        return start_stock(z.view(seeds, len(stocks), -1), stocks.expand(seeds, -1), tau)


def _copies(batch: Batch, count: int) -> Batch:
    """The rows of a batch `count` times, one copy after the other."""
    return Batch(*(x.repeat(1, count, *[1] * (x.ndim - 2)) for x in batch))


class Player:
    """Plays the agent: chooses start stocks, and keeps every episode's stock.

    Args:
        first: `(F, O)` first states of the data; None: each episode's own.
    """

    def __init__(self, agent: CVaROffline, tau: float, first: Tensor | None):
        self.agent, self.tau, self.first = agent, tau, first
        self._stock: Tensor | None = None

    def begin(self, seeds: int, episodes: int) -> None:
        self._stock = None

    def __call__(self, observations: Tensor) -> Tensor:
        if self._stock is None:
            self._stock = self._choose(observations)
        return self.agent.act(observations, self._stock)

    def reward(self, rewards: Tensor) -> None:
        """Of the step just made, `(S, n)`, as the environment paid them."""
        cfg = self.agent.cfg
        learned = rewards * cfg.data.reward_scale + cfg.data.reward_shift
        self._stock = self.agent.stocks.after(self._stock, learned, cfg.discount)

    def _choose(self, observations: Tensor) -> Tensor:
        seeds, episodes = observations.shape[:2]
        if self.first is not None:
            first = self.first.expand(seeds, -1, -1)
            return self.agent.start_stock(first, self.tau)[0][:, None].expand(-1, episodes)
        own = [self.agent.start_stock(observations[:, [e]], self.tau)[0] for e in range(episodes)]
        return torch.stack(own, 1)


class Survey:
    """Meets the preprocessed dataset as `labels` of `offline.load`; keeps what the stocks need of it."""

    def __init__(self, discount: float):
        self.discount = discount

    def __call__(self, dataset: Dataset) -> np.ndarray:
        starts = dataset.episode_starts
        some = np.linspace(0, len(starts) - 1, min(FIRST_STATES, len(starts))).astype(int)
        self.first = torch.as_tensor(dataset.observations[starts[some]])
        self.to_go = dataset.returns_to_go(self.discount)
        return self.to_go


def train(cfg: Config, run: Run) -> None:
    survey = Survey(cfg.discount)
    buffer, normalizer = preprocessing.load(run, cfg.data, cfg.batch_size, labels=survey)
    agent = CVaROffline(
        cfg,
        buffer.observation_dim,
        buffer.action_dim,
        run.rngs(),
        to_go=survey.to_go,
        steps=run.cfg.steps,
        normalizer=normalizer,
        device=run.device,
        mode=run.mode,
    )
    player = Player(agent, cfg.tau, survey.first.to(run.device) if cfg.start == "data" else None)
    rows = cfg.stocks * cfg.batch_size
    stocks = seeding.uniform(run.seeds, "stocks", (rows,), run.device, block=64)
    noise = seeding.normal(run.seeds, "noise", (rows, buffer.action_dim), run.device, block=64)
    update = compile.captured(agent.update, run.mode)
    delay = range(cfg.policy_delay)
    state = {"agent": agent, "buffer": buffer, "stocks": stocks, "noise": noise}
    for step in run.steps(stride=cfg.policy_delay, **state):
        batches = [buffer.sample() for _ in delay]
        metrics = update(batches, [stocks.next() for _ in delay], [noise.next() for _ in delay])
        run.log(step, metrics)
        run.evaluate(step, player)
        run.save(step)
    risk_summary.tell(run)


if __name__ == "__main__":
    from corerl.cli import run_file

    run_file(__file__)
