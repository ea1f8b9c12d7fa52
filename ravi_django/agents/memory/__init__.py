"""What an agent remembers, and what the model gets of it.

Read `agent_context.py` first: it loads and stores turns for a run. `history.py` keeps them, and `compaction/` shortens
the model's view.
"""
