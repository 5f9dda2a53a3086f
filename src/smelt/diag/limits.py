"""How far Smelt goes: paths, seconds, builds, plans and calls, after which something else serves. One table for all.

    print(table())      the rows of docs/limits.md

Invariant: a limit that a user can meet stands here, and nowhere else. None of them changes a result.
"""

from __future__ import annotations

from smelt.diag.records import record

# --- staging and scripts ---
STAGED_PATHS = 64
STAGED_RUNS = 64
STAGING_SECONDS = 10.0
BUILD_STAGING_SECONDS = 5.0
SCRIPT_SECONDS = 20.0
SCRIPT_STEPS = 60_000
LONG_ITERATORS = 4096

# --- one compiled object ---
ENTRIES = 8
BUILDS = 16
RECORDED_PATHS = 64
STATEFUL_BUILDS = 8
REFUSED_KINDS = 3
GRADIENT_KINDS = 3
EFFECT_ATTEMPTS = 2
FREE_BUILDS = 3
ATTEMPTS_ALIKE = 2
ATTEMPTS = 4
UNRECORDED_CALLS = 64
RESTING_CALLS = 31

# --- which is faster ---
SETTLING_CALLS = 16
WINDOW_CALLS = 128
FIRST_CALLS = 32
COMPARED_EVERY = 8

# --- sizes and plans ---
PLANS = 128
TEMPLATES = 4
SAVED_PLANS = 4
SAVED_SIZES = 8

# --- other objects ---
TRACED_CAPTURES = 8
SCHEDULED_ENTRIES = 64
SCHEDULED_CAPTURES = 128


@record
class Limit:
    """One limit. text: what is counted; and what happens beyond it."""

    value: int | float
    text: str


LIMITS: tuple[Limit, ...] = (
    Limit(STAGED_PATHS, "paths that staging explores; the recorded path is compiled alone."),
    Limit(STAGED_RUNS, "restarts of staging; the recorded path is compiled alone."),
    Limit(STAGING_SECONDS, "seconds for staging, and 10 ms for each operator; the recorded path is compiled alone."),
    Limit(BUILD_STAGING_SECONDS, "of these for one build of a compiled object; the recorded path is compiled alone."),
    Limit(SCRIPT_SECONDS, "seconds for all paths of a script; `smelt.script` raises a `CaptureError`."),
    Limit(SCRIPT_STEPS, "steps for all paths of a script; `smelt.script` raises a `CaptureError`."),
    Limit(LONG_ITERATORS, "items of an iterator in staging; the recorded path is compiled alone."),
    Limit(ENTRIES, "compiled entries of an object; the least recently used one is dropped."),
    Limit(BUILDS, "builds of an object; calls that no entry serves fall back to eager."),
    Limit(RECORDED_PATHS, "recorded paths under one set of guards; the least recently used one is dropped."),
    Limit(STATEFUL_BUILDS, "builds with state; a program that needs one at nearly each call is split."),
    Limit(REFUSED_KINDS, "kinds of calls that were refused; others are split at once."),
    Limit(GRADIENT_KINDS, "kinds of calls that needed gradients; others are not recorded while gradients are needed."),
    Limit(EFFECT_ATTEMPTS, "recorded runs with effects that cannot be replayed; the program is split."),
    Limit(FREE_BUILDS, "builds that served too few calls; a build has to pay for itself."),
    Limit(ATTEMPTS_ALIKE, "attempts for calls of one kind that failed for one reason; they fall back to eager."),
    Limit(ATTEMPTS, "attempts for calls of any kind that failed for one reason; they fall back to eager."),
    Limit(UNRECORDED_CALLS, "calls after a recorded run that raised; recording is tried again."),
    Limit(RESTING_CALLS, "eager calls after one that nothing compiled can serve; the guards are looked at again."),
    Limit(SETTLING_CALLS, "calls before compiled and eager calls are compared; a window of comparisons begins."),
    Limit(WINDOW_CALLS, "calls of a window of comparisons; the faster one serves."),
    Limit(FIRST_CALLS, "calls of a window where one is far ahead; the faster one serves."),
    Limit(COMPARED_EVERY, "calls of a window, of which two run in eager mode; the next eight begin."),
    Limit(PLANS, "plans of one graph with dynamic sizes; the least recently used one is dropped."),
    Limit(TEMPLATES, "plans of one graph that serve many sizes; other sizes have plans of their own."),
    Limit(SAVED_PLANS, "plans of a saved range of sizes; other sizes are compiled where it is loaded."),
    Limit(SAVED_SIZES, "sizes of a saved range with plans of their own; other sizes are compiled where it is loaded."),
    Limit(TRACED_CAPTURES, "captures of a traced program; the oldest one is dropped."),
    Limit(SCHEDULED_ENTRIES, "entries of a scheduled module; the oldest one is dropped."),
    Limit(SCHEDULED_CAPTURES, "captures of a scheduled module; other calls run the module, or raise S0613."),
)


def table() -> str:
    """All limits as rows of a page."""
    rows = [f"| {one.value:g} | {' | '.join(one.text[:-1].split('; '))} |" for one in LIMITS]
    return "\n".join(["| limit | of | beyond it |", "|---|---|---|", *rows])
