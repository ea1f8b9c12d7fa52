"""Pages of the app, mounted with the API below `ui/`: the chat, the page of a run, and the dashboard for staff.
Errors are HTML pages.

It owns no tables. It must survive a site without the admin: figures are then no links. Read `runs.py` first.
"""
