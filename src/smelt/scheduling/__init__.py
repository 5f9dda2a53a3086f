"""Schedules: a model as modules and as one graph at once, searched for patterns by dataflow, shaped by steps."""

from smelt.scheduling.catalogue import list_primitives
from smelt.scheduling.comparing.compare_modules import Comparison
from smelt.scheduling.comparing.compare_runs import Arguments
from smelt.scheduling.comparing.verify import StepError
from smelt.scheduling.draft import Draft, Selected
from smelt.scheduling.finding.match import Match, Matches
from smelt.scheduling.primitives import Primitive
from smelt.scheduling.registry import register_primitive
from smelt.scheduling.schedule import Schedule, Selection, apply, schedule
from smelt.scheduling.steps import Log, Step
from smelt.scheduling.tuning.tuned import Trial, Tuned
from smelt.scheduling.tuning.tuning_entry import tune

__all__ = [
    "Arguments",
    "Comparison",
    "Draft",
    "Log",
    "Match",
    "Matches",
    "Primitive",
    "Schedule",
    "Selected",
    "Selection",
    "Step",
    "StepError",
    "Trial",
    "Tuned",
    "apply",
    "list_primitives",
    "register_primitive",
    "schedule",
    "tune",
]
