"""The REST surface: one noun a file. `base.py` has what all views share, `services/problems.py` all errors."""
