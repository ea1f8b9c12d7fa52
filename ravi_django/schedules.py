"""Schedules: rows that submit runs at set times. Guide: docs/schedules.md."""

from ravi_django.wings.feeds.schedules.schedules import disable, enable, next_ticks, remove, run_now, schedule

__all__ = ["disable", "enable", "next_ticks", "remove", "run_now", "schedule"]
