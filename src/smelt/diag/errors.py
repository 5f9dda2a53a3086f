"""The error catalogue. Every error says what, where, why and how to fix it, and has a code one can search for.

error[S0101] a tensor was turned into a Python bool
  --> model.py:41 in Block.forward        if x.sum() > 0:
  why: the branch taken depends on data, which a trace cannot follow
  fix: use torch.where, or move the test out of the traced function
"""

from __future__ import annotations

from dataclasses import dataclass, field

from smelt.diag.records import record
from smelt.diag.span import Span


@record
class Code:
    """A catalogue entry: the code's number and a one-line title."""

    number: str
    title: str


# 01xx capture, 02xx graph text and structure, 03xx compile, 04xx run time, 05xx command line, 06xx schedules,
# 07xx ingots, 09xx ours.
CATALOGUE: tuple[Code, ...] = (
    Code("S0101", "a tensor was turned into a Python value"),
    Code("S0102", "the size of a result depends on data"),
    Code("S0103", "a tensor of unknown origin was used"),
    Code("S0104", "the program cannot be recorded"),
    Code("S0105", "the traced program disagrees with eager"),
    Code("S0106", "an argument has a type that cannot be captured"),
    Code("S0107", "called with arguments that do not fit the captured program"),
    Code("S0108", "torch.fx has no form for a part of the program"),
    Code("S0109", "the program cannot be scripted"),
    Code("S0110", "no run of a scripted program can get past a line"),
    Code("S0111", "a size or a number that was to stay free is fixed by the program"),
    Code("S0201", "the graph's text does not parse"),
    Code("S0202", "the graph is not well formed"),
    Code("S0203", "a constant of the graph is not at hand"),
    Code("S0301", "an option is unknown or has a wrong value"),
    Code("S0302", "a fallback was needed, and strict mode forbids it"),
    Code("S0303", "an operator cannot be lowered"),
    Code("S0304", "dynamic_shapes do not fit the program"),
    Code("S0305", "kernels for a GPU cannot be compiled here"),
    Code("S0401", "a native call failed"),
    Code("S0402", "machine code cannot be loaded"),
    Code("S0403", "a result has another layout than planned"),
    Code("S0404", "a number of a native run is beyond 64 bits"),
    Code("S0405", "a GPU or its driver cannot be used"),
    Code("S0406", "a GPU found data of an earlier call that no result fits"),
    Code("S0501", "something that a command needs is not there"),
    Code("S0502", "a process that measures failed"),
    Code("S0503", "the compiled program gives other results than eager"),
    Code("S0504", "the program named to a command cannot be loaded or run"),
    Code("S0601", "a schedule's module has no such path"),
    Code("S0602", "a pattern cannot be read"),
    Code("S0603", "a pattern has nothing to look for"),
    Code("S0604", "a pattern matches a program in too many combinations"),
    Code("S0605", "a schedule's module cannot be captured"),
    Code("S0606", "a primitive is not known, or there is one of its name"),
    Code("S0607", "a step cannot be applied to what was selected"),
    Code("S0608", "a replacement does not fit"),
    Code("S0609", "matches overlap or cannot be moved past side effects"),
    Code("S0610", "a hook is inside the region of a step"),
    Code("S0611", "a schedule cannot be written as text, or read from it"),
    Code("S0612", "a module cannot be copied"),
    Code("S0613", "the steps of a schedule do not fit a call"),
    Code("S0614", "a step cannot be applied to a kernel, or to a loop of it"),
    Code("S0621", "a scheduled module gives other results than its model"),
    Code("S0622", "a model cannot be run to be compared"),
    Code("S0623", "a step makes a larger error than allowed"),
    Code("S0631", "the knobs of a schedule cannot be searched"),
    Code("S0632", "no choice of a schedule's knobs can be used"),
    Code("S0641", "a tensor or a program cannot be divided so"),
    Code("S0642", "a mesh does not fit"),
    Code("S0643", "ranks do not agree"),
    Code("S0644", "a rank is missing from a collective"),
    Code("S0645", "a checkpoint cannot be written or does not fit"),
    Code("S0646", "figures of a machine or a link cannot be read"),
    Code("S0701", "an ingot cannot be read"),
    Code("S0702", "a program cannot be saved as an ingot"),
    Code("S0703", "an ingot has no native code that runs here"),
    Code("S0704", "an ingot cannot be exported to C"),
    Code("S0705", "an ingot cannot be exported to ONNX"),
    Code("S0901", "a pass broke the graph"),
    Code("S0902", "an internal invariant does not hold"),
)
_TITLES = {c.number: c.title for c in CATALOGUE}


@dataclass(eq=False)
class SmeltError(Exception):
    """Base of all errors that Smelt raises.

    `what` is the sentence that names the objects involved, `where` the user's source, `why` the rule that was broken,
    `fix` what to do. `code` is an entry of `CATALOGUE`.
    """

    what: str
    where: Span | None = None
    why: str = ""
    fix: str = ""
    code: str = "S0902"
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.code not in _TITLES:
            raise ValueError(f"{self.code} is not in the error catalogue")
        super().__init__(self.what)

    def __str__(self) -> str:
        lines = [f"error[{self.code}] {self.what}"]
        if self.where is not None:
            text = self.where.text
            lines.append(f"  --> {self.where}" + (f"        {text}" if text else ""))
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        lines.extend(f"  note: {note}" for note in self.notes)
        return "\n".join(lines)

    @property
    def reason(self) -> str:
        """What, where and, of an operator that cannot be lowered, why: for one line of a report."""
        where = f" at {self.where}" if self.where is not None else ""
        return f"{self.what}{where}" + (f": {self.why}" if self.why and self.code == "S0303" else "")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what, self.where, self.why, self.fix, self.code, self.notes))


class CaptureError(SmeltError):
    """The program cannot be captured faithfully, or its graph is not usable."""


class ScheduleError(SmeltError):
    """A schedule step is not legal."""


class VerifyError(SmeltError):
    """Two programs that must agree do not, or a graph is not well formed."""


class PackageError(SmeltError):
    """A saved program cannot be written or read."""


class LateError(SmeltError):
    """What a GPU found in data of an earlier call, which returned before the GPU was done.

    The call that raises it has done nothing; eager mode would not find the fault again.
    """


class RanksError(SmeltError):
    """Ranks that work together disagree, or one is missing: for all of them an error, and no reason to run again."""


class InternalError(SmeltError):
    """A defect of Smelt itself; carries what is needed to reproduce it."""


class Miss(Exception):
    """A run met another value than the only one that its graph holds for (`expect`); nothing visible has happened.

    where: the line that read the value; no error of the program's, and nobody sees it but who tries the next graph.
    printed: how many pieces of text the run has shown all the same, by stream, which are not to be shown again.
    """

    def __init__(self, expected: object, found: object = None, where: Span | None = None) -> None:
        super().__init__(f"expected {expected!r}, found {found!r}" + (f" at {where}" if where is not None else ""))
        self.expected, self.found, self.where = expected, found, where
        self.printed: dict[str, int] | None = None


class SmeltWarning(UserWarning):
    """Something still works, but not as the user may think (a fallback, a bake, a storm of recompiles)."""


def title(code: str) -> str:
    """The one-line title of a catalogue entry."""
    return _TITLES[code]
