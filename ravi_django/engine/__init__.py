"""The durable core: the database, the journal, one lease of one run, and the worker that drives it.

Read `journal/fence.py`, `lease/claims.py`, `worker/drive.py` and `lease/recorder.py`, in this order.
"""
