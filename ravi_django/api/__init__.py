"""The REST surface: one noun a file. `base.py` has what all views share, `errors.py` every answer but success."""
