"""Requests to the world outside that cannot reach the site's own network. Read `outbound.py` first."""
