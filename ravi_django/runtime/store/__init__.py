"""The writers of run state, beside `settle`: synchronous functions, each one transaction, all times by the
database's clock.

A worker's write carries the run's id and its lease's epoch and must match one row; otherwise it raises LeaseLostError
and records nothing. A transaction that locks several runs locks them in the order of their ids, and before sessions.
Isolation is READ COMMITTED. Read `fence.py` first.
"""
