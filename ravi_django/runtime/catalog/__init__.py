"""Which agents there are: registered by code, stored as rows, and their prompts.

Owns Agent and AgentVersion. It must survive an edit while runs live: a run keeps the version it was created with. Read
`registry.py` first.
"""
