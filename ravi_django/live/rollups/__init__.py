"""Rollups: counts of runs, times, tokens and cost by hour and by day, and the figures of the dashboard.

Owns Rollup. It must survive a sweep that dies, and two sweeps at once: nothing is counted twice. Read `counting.py`
first.
"""
