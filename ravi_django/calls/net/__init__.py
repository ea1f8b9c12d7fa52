"""HTTP requests that cannot reach the site's own network. Read `outbound.py` first."""
