"""The pages and endpoints of feeds: the API, the admin, the doctor's findings.

Owns no table. It must survive a webhook without a valid signature: nothing is taken. Read `urls.py` first.
"""
