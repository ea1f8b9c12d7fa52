"""An agent as data: kept in the database, made anew by a worker. Read `spec.py` first."""
