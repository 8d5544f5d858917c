"""Recipes of our own datasets."""
