"""Rewrites functions so that a runtime decides what their branches, loops, calls and operators mean."""

from smelt.capture.convert.convert import Converted, convert
from smelt.capture.convert.errors import CannotConvert
from smelt.capture.convert.runtime import (
    HIDDEN,
    PLAIN,
    UNDEF,
    PlainRuntime,
    Runtime,
    Undefined,
    current,
    installed,
    nothing,
)
from smelt.capture.convert.swap import functions_of, living_functions, named_functions, swapped

__all__ = [
    "HIDDEN",
    "PLAIN",
    "UNDEF",
    "CannotConvert",
    "Converted",
    "PlainRuntime",
    "Runtime",
    "Undefined",
    "convert",
    "current",
    "functions_of",
    "installed",
    "living_functions",
    "named_functions",
    "nothing",
    "swapped",
]
