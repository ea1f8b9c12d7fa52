"""A model without an API key, which answers by rules, to try out a site. Read `model.py` first."""
