"""Distributions of returns, CVaR and finite MDPs, with exact answers."""
