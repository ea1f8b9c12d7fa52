"""The admin's pages of agents: list, form, versions, preview. Read `pages.py` first."""
