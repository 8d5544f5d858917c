"""QR-DQN, IQN, MD3QN and HRA once more: float64 torch, one seed, one transition at a time.

Written from the equations, not from corerl's files: pairs of quantiles and of particles are compared one by
one, the best action is found by Python, steps are torch.optim's. A network is a dict of arrays with the names
of corerl's modules.
"""

import math

import numpy as np
import torch

from corerl.buffers.frame_replay import Transitions

SEEDS, B, O, A, K = 2, 4, 3, 4, 3


def make_transitions(count: int, sources: int = K) -> list[Transitions]:
    """Other data for each seed; a third of the rows terminal. B differs from any number of quantiles."""
    rng = np.random.default_rng(0)

    def tensor(x):
        return torch.as_tensor(x).to(torch.get_default_dtype())

    def one() -> Transitions:
        s, s_next = rng.normal(size=(2, SEEDS, B, O))
        a = torch.as_tensor(rng.integers(A, size=(SEEDS, B)))
        r = rng.normal(size=(SEEDS, B, sources))
        discounts = 0.9 * (rng.random((SEEDS, B)) > 0.3)
        return Transitions(tensor(s), a, tensor(r), tensor(s_next), tensor(discounts))

    return [one() for _ in range(count)]


def one_seed(batch: Transitions, seed: int) -> list[tuple]:
    """Rows `(s, a, r, s', discount)` of one seed, float64."""
    fields = [x[seed].double() if x.is_floating_point() else x[seed] for x in batch]
    return list(zip(*fields, strict=True))


def leaves(net):
    return {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in net.items()}


def numbers(net):
    return {k: v.detach().numpy() for k, v in net.items()}


def layer(net, name, x):
    return x @ net[f"{name}.weight"] + net[f"{name}.bias"][0]


def encoded(net, x):
    depth = sum(k.startswith("encoder.dense") and k.endswith("weight") for k in net)
    for i in range(depth):
        x = torch.relu(layer(net, f"encoder.dense.layers.{i}", x))
    return x


def huber(u: torch.Tensor, kappa: float) -> torch.Tensor:
    return 0.5 * u**2 if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)


def rho(u: torch.Tensor, tau, kappa: float) -> torch.Tensor:
    """Eq. 10 of QR-DQN over kappa, for one difference."""
    return abs(tau - float(u < 0)) * (huber(u, kappa) / kappa if kappa else abs(u))


def quantile_loss(theta, taus, y, kappa):
    """Sum over predicted quantiles of the mean over targets."""
    return sum(sum(rho(t - q, tau, kappa) for t in y) / len(y) for q, tau in zip(theta, taus))  # noqa: B905


class Learner:
    """Adam on the mean of `row_loss` over a batch; targets are copied by hand."""

    def __init__(self, online, target, settings):
        self.c, self.online, self.target = settings, leaves(online), leaves(target)
        self.optimizer = torch.optim.Adam(
            self.online.values(), lr=settings.lr, eps=settings.adam_eps
        )

    def update(self, rows, *draws) -> float:
        losses = [self.row_loss(*row, *(d[i] for d in draws)) for i, row in enumerate(rows)]
        loss = sum(losses) / len(losses)
        self.optimizer.zero_grad()
        loss.backward()
        if norm := getattr(self.c, "max_grad_norm", None):
            torch.nn.utils.clip_grad_norm_(self.online.values(), norm)
        self.optimizer.step()
        return loss.item()


def best(values) -> int:
    """The action of the largest mean."""
    return max(range(len(values)), key=lambda a: float(values[a].detach().mean()))


class QRDQN(Learner):
    def table(self, net, s):
        return layer(net, "head", encoded(net, s)).reshape(A, self.c.quantiles)

    def row_loss(self, s, a, r, s_next, discount):
        n = self.c.quantiles
        ahead = self.table(self.target, s_next)
        choice = best(self.table(self.online, s_next) if self.c.double else ahead)
        y = (r.sum() + discount * ahead[choice]).detach()
        taus = [(2 * i + 1) / (2 * n) for i in range(n)]
        return quantile_loss(self.table(self.online, s)[a], taus, y, self.c.kappa)


class IQN(Learner):
    def table(self, net, s, taus):
        """`(A, N)`: one pass of the network per fraction."""
        waves = [
            [math.cos(math.pi * i * float(t)) for i in range(1, self.c.cosines + 1)] for t in taus
        ]
        columns = []
        for wave in torch.tensor(waves, dtype=torch.float64):
            x = encoded(net, s) * torch.relu(layer(net, "embedding", wave))
            for i in range(self.c.hidden_layers):
                x = torch.relu(layer(net, f"head.layers.{i}", x))
            columns.append(layer(net, f"head.layers.{self.c.hidden_layers}", x))
        return torch.stack(columns, 1)

    def row_loss(self, s, a, r, s_next, discount, draws):
        c = self.c
        n, m = c.fractions, c.target_fractions
        taus, others, choosing = draws[:n], draws[n : n + m], draws[n + m :]
        chooser = self.online if c.double else self.target
        choice = best(self.table(chooser, s_next, [c.risk * float(t) for t in choosing]))
        y = (r.sum() + discount * self.table(self.target, s_next, others)[choice]).detach()
        return quantile_loss(
            self.table(self.online, s, taus)[a], [float(t) for t in taus], y, c.kappa
        )


class MD3QN(Learner):
    def table(self, net, s):
        return layer(net, "head", encoded(net, s)).reshape(A, self.c.particles, -1)

    def k(self, x, y):
        """The mixture of kernels at two particles."""
        squares = [(p - q) ** 2 for p, q in zip(x, y, strict=True)]
        d = sum(squares) / (len(squares) if self.c.distance == "mean" else 1)
        weight = math.sqrt if self.c.kernel_weight == "sqrt" else lambda b: 1.0
        return sum(weight(b) * torch.exp(-d / b) for b in self.c.bandwidths)

    def row_loss(self, s, a, r, s_next, discount, draw=None):
        ahead = self.table(self.target, s_next)
        totals = ahead.sum(2)
        choice = best(totals) if draw is None else int(float(draw) * A)
        y = (r + discount * ahead[choice]).detach()
        x, m = self.table(self.online, s)[a], self.c.particles
        pairs = [(i, j) for i in range(m) for j in range(m)]
        cross = sum(self.k(x[i], y[j]) for i, j in pairs) / m**2
        if self.c.estimator == "u":
            pairs = [(i, j) for i, j in pairs if i != j]
        own = sum(self.k(x[i], x[j]) + self.k(y[i], y[j]) for i, j in pairs) / len(pairs)
        return own - 2 * cross


class HRA(Learner):
    def table(self, net, s):
        return layer(net, "head", encoded(net, s)).reshape(A, -1)

    def row_loss(self, s, a, r, s_next, discount):
        ahead, here = self.table(self.target, s_next), self.table(self.online, s)
        together = best(ahead)
        loss = 0.0
        for n in range(len(r)):
            choice = best(ahead[:, n]) if self.c.bootstrap == "own" else together
            u = (r[n] + discount * ahead[choice, n]).detach() - here[a, n]
            loss = loss + huber(u, 1.0)
        return loss


def agree(kind, agent, module, batches, draws, tolerance) -> None:
    """Five updates of `agent` and of a reference per seed give equal losses and networks."""
    from agreement import assert_networks, net, scramble

    scramble(module, agent.target)
    references = [kind(net(module, s), net(agent.target, s), agent.cfg) for s in range(SEEDS)]
    for number, batch in enumerate(batches):
        drawn = () if draws is None else (draws[number],)
        metrics = agent.update(batch, *drawn)
        for s, theirs in enumerate(references):
            loss = theirs.update(one_seed(batch, s), *(d[s] for d in drawn))
            np.testing.assert_allclose(
                float(metrics["loss"][s]), loss, rtol=tolerance, atol=tolerance
            )
    for s, theirs in enumerate(references):
        assert_networks(net(module, s), numbers(theirs.online), tolerance)
        assert_networks(net(agent.target, s), numbers(theirs.target), tolerance)
