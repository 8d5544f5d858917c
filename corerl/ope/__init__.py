"""Judging a policy from data that another policy recorded."""
