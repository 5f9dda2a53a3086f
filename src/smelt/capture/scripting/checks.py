"""torch's own checks of what only a run knows: `torch._check(x.size(0) > 2, lambda: f"...")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from smelt._torch.checks import CHECKS, UNTOLD, check_with
from smelt.capture.convert.runtime import Args, Kwargs
from smelt.capture.staging.fakes.symbols import StagedBool

if TYPE_CHECKING:
    from smelt.capture.scripting.domain import Open
    from smelt.capture.scripting.runtime import OpenRuntime


def _check(raised: type[Exception]) -> Callable[..., object]:
    def check(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
        given = {**dict(zip(("cond", "message"), args, strict=False)), **kwargs}
        test, message = given.get("cond"), given.get("message")
        if not isinstance(test, StagedBool):
            return NotImplemented

        def error() -> Exception:
            return raised(UNTOLD if message is None else runtime.call(0, str, (runtime.call(0, message, (), {}),), {}))

        runtime.raise_if(domain.emit("py.not_", test), error)
        return None

    return check


def _check_with(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    return _check(args[0])(domain, runtime, args[1:], kwargs) if args else NotImplemented


HANDLERS: dict[object, Callable[..., object]] = {check: _check(raised) for check, raised in CHECKS.items()}
if check_with is not None:
    HANDLERS[check_with] = _check_with
