"""Middlewares that check or redact the messages, answers and tool calls of an agent."""
