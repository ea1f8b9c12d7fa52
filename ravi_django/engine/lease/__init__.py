"""The operations of a lease holder: claim, load, recall, record and wait. Features are written with it.

Owns the lease's columns of Run. It must survive the loss of the lease at any line: nothing is recorded after it. Read
`recorder.py` first: `Recorder` uses the `Journal` and `Waits`, and all of them use `LeaseState`.
"""
