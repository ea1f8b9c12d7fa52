"""Parts that a site may leave out: `RAVI["WINGS"]` names those that it has.

Its packages own the tables. It must survive a site without a wing: no other folder imports one, and the tables stay.
Read `feeds/wing.py` first: what a wing registers.
"""
