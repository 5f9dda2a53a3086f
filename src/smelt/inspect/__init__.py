"""Looking at what was captured and compiled."""

from smelt.inspect.explain import explain
from smelt.inspect.report import Report

__all__ = ["Report", "explain"]
