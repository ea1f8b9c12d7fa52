"""The REST API: one resource a file. `base.py` has the base classes, `services/problems.py` all errors."""
