"""How our own datasets are made."""
