"""Middlewares that stand guard: what goes to the model, what comes from it, what tools are asked for."""
