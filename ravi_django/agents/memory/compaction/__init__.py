"""Shorten the model's view of a long conversation. The history keeps all of it. Read `strategy.py` first."""
