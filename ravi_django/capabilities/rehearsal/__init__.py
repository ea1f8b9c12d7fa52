"""A model without a key: it answers by rules, so that a site can be tried out. Read `model.py` first."""
