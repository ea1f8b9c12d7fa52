"""Schedules: rows that submit runs at the times of a cron expression or an interval.

Owns Schedule and ScheduleTick. It must survive several schedulers at once: a tick submits one run. Read `ticking.py`
first.
"""
