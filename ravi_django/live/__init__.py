"""Views of runs at work: streams of frames, and counts for lists and the dashboard.

Its packages own the tables. It must survive a lost buffer and a sweep that dies. Read `streams/frames.py` first.
"""
