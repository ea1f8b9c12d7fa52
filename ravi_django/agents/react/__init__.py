"""The loop of model and tools. Read `agent.py` first, then `calls.py`."""
