"""One worker process: claims leases, drives them, settles them, and sweeps.

Owns WorkerProcess and the sweep's row. It must survive everything: the rows are the state, and another process continues.
Read `drive.py` first.
"""
