"""Agents written as a generator of events. Read `agent.py` first; docs/flows.md shows one."""
