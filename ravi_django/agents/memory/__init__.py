"""The memory of an agent, and the view of it for the model.

Read `agent_context.py` first: it loads and stores turns for a run. `history.py` keeps them, and `compaction/` shortens
the model's view.
"""
