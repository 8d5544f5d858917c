"""Comparisons of segments, their teachers, and rewards learned from them."""
