"""A model without an API key, which answers by rules, for trials. Read `model.py` first."""
