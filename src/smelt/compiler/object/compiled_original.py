"""The program as it is, in the place of what was to be compiled: counted, told once, or refused.

Invariant: where `strict` or `fullgraph` asks for the compiled program, an error stands in the place of a fallback.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from smelt.capture.structure.state import without_state
from smelt.compiler.deciding.ledger import Ledger
from smelt.compiler.object.compiled_types import Settings, Stats
from smelt.diag import CaptureError, SmeltError, SmeltWarning, Span, user_level
from smelt.diag.logs import tell

_GRAD_REMEDY = "call it under torch.no_grad() or torch.inference_mode(), or leave out options={'train': False}"


class _Thread(threading.local):
    """How many fallbacks of one program this thread has counted."""

    counted: int = 0


class Original:
    """The program of one compiled object, and what the user is told when it runs. ledger: what its builds may take."""

    def __init__(self, target: Callable[..., Any], name: str, settings: Settings, stats: Stats, ledger: Ledger) -> None:
        self.target, self.name, self.settings = target, name, settings
        self.ledger = ledger
        self._stats = stats
        self._warned: set[str] = set()
        self._thread = _Thread()

    @property
    def is_strict(self) -> bool:
        """Whether every fallback is an error."""
        return self.settings.options.strict

    @property
    def is_whole(self) -> bool:
        """Whether it is an error where the program does not become one graph."""
        return self.is_strict or self.settings.fullgraph

    def run(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_fault: bool = True) -> Any:
        """Run the program as it is, for a counted reason. Raises: SmeltError (S0302) in strict mode."""
        if is_fault and self.is_whole:
            self.refuse(reason)
        self.count(reason)
        return self.run_timed(args, kwargs)

    def run_timed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the program as it is; how long it takes is known to the ledger from then on."""
        if self.is_piece:
            return self.target(*args, **without_state(kwargs))
        return self.ledger.timed(self.target, args, without_state(kwargs))

    @property
    def is_piece(self) -> bool:
        """Whether it is a piece of a split program, whose ledger is that of all of it."""
        return self.settings.refused is not None

    def refuse(
        self,
        reason: str,
        cause: BaseException | None = None,
        remedy: str = "remove the cause",
        where: Span | None = None,
    ) -> NoReturn:
        """Raises: CaptureError (S0302): the program was not compiled, for this reason."""
        which = "options={'strict': True}" if self.is_strict else "fullgraph=True"
        raise CaptureError(
            f"{self.name} was not compiled: {reason}",
            where,
            why=f"{which} makes every fallback an error",
            fix=f"{remedy}, or leave out {which}",
            code="S0302",
        ) from cause

    def fail(self, failure: Exception | None) -> NoReturn:
        """Raises: SmeltError: why a build failed; CaptureError (S0302) where that was no error of ours."""
        if isinstance(failure, SmeltError):
            raise failure
        self.refuse(f"{type(failure).__name__}: {failure}", failure)

    def with_gradients(self, what: str, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the program as it is, because `what` requires grad. why: what keeps it from being compiled for training,
        where that is wanted."""
        result = self.target(*args, **without_state(kwargs)) if not self.is_whole else None
        if not why:
            self.needs_gradients(what)
        elif self.is_whole:
            self.refuse(why)
        else:
            self.count(why)
        return result

    def needs_gradients(self, what: str) -> str:
        """Count a call that is the program's own because `what` requires grad and only inference is to be compiled; the
        reason. Raises: CaptureError (S0302) where that is an error.
        """
        reason = f"gradients are needed: {what} requires grad, and options has 'train': False"
        if self.is_whole:
            self.refuse(reason, remedy=_GRAD_REMEDY)
        self.count(reason)
        return reason

    def why_not_trained(self, why: str) -> str:
        """Count a call that is the program's own because it cannot be compiled with gradients; the reason.

        Raises: CaptureError (S0302) where that is an error.
        """
        reason = f"gradients are needed, and {why}"
        if self.is_whole:
            self.refuse(reason)
        self.count(reason)
        return reason

    @property
    def counted(self) -> int:
        """How many calls of this thread were counted."""
        return self._thread.counted

    def count(self, reason: str) -> None:
        """Count a call that was not the compiled program's."""
        self._thread.counted += 1
        if reason not in self._stats.fallbacks:
            tell("breaks", f"{self.name}: a call falls back to eager: {reason}")
        self._stats.count_fallback(reason)

    def warn(self, key: str, message: str) -> None:
        """One warning for each reason, at the user's own line."""
        if key not in self._warned and self.settings.refused is None:
            self._warned.add(key)
            warnings.warn(message, SmeltWarning, stacklevel=user_level())
