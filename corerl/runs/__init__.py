"""The names of runs and their files on disk."""
