"""Views of runs at work: streams of frames, and counts for lists and the dashboard."""
