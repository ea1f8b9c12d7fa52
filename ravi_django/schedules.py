"""Schedules: rows that submit runs at set times. Guide: docs/howto/schedules.md."""

from typing import TYPE_CHECKING

from ravi_django.wing import public

if TYPE_CHECKING:
    from ravi_django.wings.feeds.schedules.schedules import disable, enable, next_ticks, remove, run_now, schedule

__all__ = ["disable", "enable", "next_ticks", "remove", "run_now", "schedule"]
__getattr__ = public(__name__, {"wings.feeds.schedules.schedules": "disable enable next_ticks remove run_now schedule"})
