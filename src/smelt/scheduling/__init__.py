"""Schedules: a model as modules and as one graph at once, searched for patterns by dataflow."""

from smelt.scheduling.match import Match, Matches
from smelt.scheduling.schedule import Schedule, Selection, schedule

__all__ = ["Match", "Matches", "Schedule", "Selection", "schedule"]
