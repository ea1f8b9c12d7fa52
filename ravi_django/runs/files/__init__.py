"""Uploaded files that messages name by id. Table: RaviFile, and the content in Django's storage.

The journal has the id of a file, never its content: the content is read for each model call. It must survive a crash
between the storage and the table: the row is written before its content and deleted after it. Read `files.py` first.
"""
