"""What runs by the clock: schedules, timetables and ticks.

Owns Schedule and ScheduleTick. It must survive several schedulers at once: a tick submits one run. Read `ticking.py`
first.
"""
