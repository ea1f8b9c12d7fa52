"""The operations of a lease holder: claim, load, effects, waits and the gate. Features are written with it.

Owns the lease's columns of Run. It must survive the loss of the lease at any line: nothing is recorded after it. Read
`effects.py` first.
"""
