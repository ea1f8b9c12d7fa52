"""HTTP requests that cannot reach the site's own network.

Owns no table. It must survive a name whose address changes after its check: the connection goes to the checked address.
Read `outbound.py` first.
"""
