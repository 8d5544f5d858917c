"""A plain loop of TD3 (arXiv:1802.09477), written apart from corerl's, to compare learning curves.

    python results/reproduced/td3/plain_loop.py Hopper-v4 0 300000 step 256 256 1e-3 100 1000

The arguments are task, seed, steps, order, two widths, learning rate, batch size and random steps.

`step` makes an update after every step, `episode` makes an episode's updates when it has ended. It prints
rows of a CSV file: seed, step, mean return of ten episodes without noise.
"""

import sys
from itertools import pairwise

import gymnasium
import numpy as np
import torch
from torch import nn


def mlp(*sizes: int) -> nn.Sequential:
    layers = [m for i, o in pairwise(sizes) for m in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def follow(target: nn.Module, source: nn.Module, share: float) -> None:
    with torch.no_grad():
        for old, new in zip(target.parameters(), source.parameters(), strict=True):
            old.mul_(1 - share).add_(new, alpha=share)


def main(
    task: str,
    seed: int,
    steps: int,
    order: str,
    widths: list[int],
    rate: float,
    batch: int,
    random_steps: int,
):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env, player = gymnasium.make(task), gymnasium.make(task)
    O, A, high = (
        env.observation_space.shape[0],
        env.action_space.shape[0],
        float(env.action_space.high[0]),
    )
    actor, target_actor = mlp(O, *widths, A), mlp(O, *widths, A)
    critics = [mlp(O + A, *widths, 1) for _ in range(2)]
    target_critics = [mlp(O + A, *widths, 1) for _ in range(2)]
    for target, source in zip([target_actor, *target_critics], [actor, *critics], strict=True):
        follow(target, source, 1)
    actor_adam = torch.optim.Adam(actor.parameters(), rate)
    critic_adam = torch.optim.Adam([p for c in critics for p in c.parameters()], rate)
    memory = torch.zeros(steps, O + A + 1 + O + 1)
    stored = made = 0

    def update() -> None:
        nonlocal made
        made += 1
        rows = memory[torch.from_numpy(rng.integers(stored, size=batch))]
        s, a, r, following, end = rows.split([O, A, 1, O, 1], 1)
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(a)).clamp(-0.5, 0.5)
            action = (torch.tanh(target_actor(following)) + noise).clamp(-1, 1)
            x = torch.cat([following, action], 1)
            y = r + 0.99 * (1 - end) * torch.minimum(target_critics[0](x), target_critics[1](x))
        x = torch.cat([s, a], 1)
        loss = sum(((c(x) - y) ** 2).mean() for c in critics)
        critic_adam.zero_grad()
        loss.backward()
        critic_adam.step()
        if made % 2 == 0:
            loss = -critics[0](torch.cat([s, torch.tanh(actor(s))], 1)).mean()
            actor_adam.zero_grad()
            loss.backward()
            actor_adam.step()
            for target, source in zip(
                [target_actor, *target_critics], [actor, *critics], strict=True
            ):
                follow(target, source, 0.005)

    @torch.no_grad()
    def act(observation: np.ndarray) -> np.ndarray:
        return torch.tanh(actor(torch.as_tensor(observation, dtype=torch.float32))).numpy()

    def evaluate(step: int) -> None:
        returns = []
        for episode in range(10):
            observation, _ = player.reset(seed=seed * 1000 + 500 + episode)
            total, over = 0.0, False
            while not over:
                observation, reward, terminated, truncated, _ = player.step(high * act(observation))
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
        print(f"{seed},{step},{np.mean(returns):.2f}", flush=True)

    observation, _ = env.reset(seed=seed)
    began = 0
    for step in range(1, steps + 1):
        if step <= random_steps:
            action = rng.uniform(-1, 1, A)
        else:
            action = (act(observation) + 0.1 * rng.standard_normal(A)).clip(-1, 1)
        following, reward, terminated, truncated, _ = env.step(high * action)
        row = np.concatenate([observation, action, [reward], following, [terminated]])
        memory[stored] = torch.as_tensor(row, dtype=torch.float32)
        stored += 1
        observation = following
        over = terminated or truncated
        if order == "step" and step > random_steps:
            update()
        if over:
            for _ in range(step - began if order == "episode" else 0):
                update()
            began = step
            observation, _ = env.reset()
        if step % 20_000 == 0:
            evaluate(step)


if __name__ == "__main__":
    task, seed, steps, order, *rest = sys.argv[1:]
    first, second, rate, batch, random_steps = rest
    main(
        task,
        int(seed),
        int(steps),
        order,
        [int(first), int(second)],
        float(rate),
        int(batch),
        int(random_steps),
    )
