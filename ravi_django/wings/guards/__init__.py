"""Middlewares that check or redact the messages, answers and tool calls of an agent.

Owns no table. It must survive a check that fails: nothing passes unchecked. Read `guardrails.py` first.
"""
