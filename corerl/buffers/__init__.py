"""A dataset or a replay on the device, sampled as batches of all seeds."""
