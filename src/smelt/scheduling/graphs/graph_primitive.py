"""The base of primitives that edit the graph of a module's forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smelt.diag import ScheduleError
from smelt.scheduling.draft import Draft, Selected
from smelt.scheduling.finding.match import Match
from smelt.scheduling.graphs.editing import Editor, GraphStep
from smelt.scheduling.primitives import Primitive


class GraphPrimitive(Primitive):
    """A primitive that is taken on matches: once on the graph of the schedule, then on each capture of a call.

    A subclass says `edit`; `prepare` is for what is done once, with the module tree.
    """

    def prepare(self, draft: Draft, at: Selected, **arguments: Any) -> Mapping[str, Any]:
        """What `edit` gets as arguments; modules that the step needs are put into the draft's tree here."""
        return arguments

    @staticmethod
    def edit(editor: Editor, matches: Sequence[Match], **arguments: Any) -> None:
        """Edit the graph. Raises: ScheduleError where that is not legal."""
        raise NotImplementedError

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        """Take the step on the graph of the module at the path."""
        if at.selector is None:
            raise ScheduleError(
                f"{self.name} needs to know of what", why="it is applied to matches, not to a module",
                fix=f"s.{self.name}(s.find(pattern)[0], ...)", code="S0607",
            )  # fmt: skip
        name = arguments.get("name")
        if name is not None and not (isinstance(name, str) and name.isidentifier()):
            raise ScheduleError(
                f"{name!r} is no name", why="calls, modules and kernels are found by it, with a number behind it",
                fix="give letters, digits and underscores", code="S0608",
            )  # fmt: skip
        given = dict(self.prepare(draft, at, **arguments))
        keeps_meaning = self.keeps_meaning or bool(given.pop("equal", False))
        step = GraphStep(self.name, type(self).edit, at.selector, given, keeps_meaning)
        draft.take_on_graph(at.path, step)
        draft.note(at.path, f"{self.name} of {at.selector}")
