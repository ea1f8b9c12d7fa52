"""Agents written as a generator of events. Read `agent.py` first; docs/howto/flows.md shows one."""
