"""What people see while a run is at work: streams of frames, and counts for lists and the dashboard."""
