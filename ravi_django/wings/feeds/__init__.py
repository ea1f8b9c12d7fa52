"""News: follow, publish, sources, schedules and the agents that read."""
