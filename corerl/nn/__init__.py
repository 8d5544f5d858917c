"""Layers with a seed axis, and how they are stepped."""
