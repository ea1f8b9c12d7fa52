"""Runs among themselves: ask, spawn, slots of a tree and task boards.

Owns Ask and BoardTask. It must survive the death of either side: an ask has one outcome. Read `asks.py` first.
"""
