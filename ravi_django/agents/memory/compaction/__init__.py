"""Shorten what the model is shown of a long conversation. The history keeps all of it. Read `strategy.py` first."""
