"""corerl: research implementations of deep reinforcement learning, and the statistics to trust them."""

__version__ = "0.1.0"
