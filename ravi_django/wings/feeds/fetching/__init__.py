"""Fetch and parse feeds, and make items of them."""
