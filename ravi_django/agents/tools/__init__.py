"""Tools: made of functions, described to a model, called with checked arguments. Read `function_tool.py` first."""
