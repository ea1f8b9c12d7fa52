"""What an agent remembers, and what of it the model is shown.

Read `agent_context.py` first. `history.py` keeps turns, `turns.py` loads and stores them for a run, and `compaction/`
shortens what the model is shown.
"""
