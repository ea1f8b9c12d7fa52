"""Calls of models and tools: providers, journaled calls, middleware, outbound HTTP and the built-in tools."""
