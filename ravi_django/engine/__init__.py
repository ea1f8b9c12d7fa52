"""The durable core: the database, the journal, one lease of one run, and the worker that executes it.

Its packages own the tables. It must survive the death of a process at any line: another one continues from the rows.
Read `journal/fence.py`, `lease/claims.py`, `worker/drive.py` and `lease/recorder.py`, in this order.
"""
