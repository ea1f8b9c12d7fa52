"""One worker process: claims leases, executes them, settles them, and sweeps.

Owns WorkerProcess and the sweep's row. It must survive everything: another process continues from the rows.
Read `drive.py` first.
"""
