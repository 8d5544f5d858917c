"""Experiments: from a command line to cells, jobs and times."""
