"""The agents: registered by code or stored as rows, and their prompts.

Owns Agent and AgentVersion. It must survive an edit while runs live: a run keeps the version it was created with. Read
`registry.py` first.
"""
