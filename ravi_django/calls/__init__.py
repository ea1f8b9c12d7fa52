"""Calls of models and tools: providers, journaled calls, middleware, outbound HTTP and the built-in tools.

Owns no table. It must survive a death between a call and its row. Read `model/call.py` first, then `tools/call.py`.
"""
