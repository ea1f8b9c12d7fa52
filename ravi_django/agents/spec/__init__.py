"""An agent as data: stored in the database, rebuilt by a worker. Read `spec.py` first."""
