"""The loop, its data and environments, acting and evaluating."""
