"""The error that a step gives away, measured: the answers of a model before and after it on the example inputs."""

from __future__ import annotations

import torch

from smelt.diag import ScheduleError
from smelt.scheduling.comparing.compare import items
from smelt.scheduling.comparing.compare_runs import Arguments, Run, observe
from smelt.scheduling.draft import Draft
from smelt.scheduling.modules import copying


class Measured:
    """Measures what is done to a draft between its making and `error`.

    Without example inputs, or with ones on which the model does not run, there is nothing to measure, and no error.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._before = None if draft.examples is None else self._answers(draft)

    def error(self, step: str, path: str, allowed: float) -> float | None:
        """The largest error of an output, rms relative to its own rms.

        Raises: ScheduleError: S0607 where the model does not run any more, S0623 where the error is too large.
        """
        if self._before is None:
            return None
        after = self._answers(self._draft, f"{step} of {path or 'the whole'}")
        assert after is not None
        found = max((_relative(a, b) for a, b in zip(self._before, after, strict=True)), default=0.0)
        if not found <= allowed:
            raise ScheduleError(
                f"{step} of {path or 'the whole'} makes an error of {found:.2g}",
                why=f"measured on the example inputs, relative to the rms of the result; {allowed:.2g} is allowed",
                fix=f"allow it with max_error={2 * found:.1g}, or apply the step to fewer modules", code="S0623",
            )  # fmt: skip
        return found

    def _answers(self, draft: Draft, step: str = "") -> list[torch.Tensor] | None:
        """The floats among the outputs on the examples; None where the model does not run before the step."""
        assert draft.examples is not None
        observed = observe(copying.build(draft.root), Run(Arguments(tuple(draft.examples)), 0))
        error = observed.error
        if error is None:
            found = [item.value for item in items(observed.values["output"], "")]
            return [t.detach().double() for t in found if isinstance(t, torch.Tensor) and t.is_floating_point()]
        if not step:
            return None
        raise ScheduleError(
            f"{step} makes the model raise {type(error).__qualname__}: {error}",
            why="it was run on the example inputs", fix="apply the step to a part of the module only", code="S0607",
        ) from error  # fmt: skip


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """The rms of the difference relative to that of `a`, where `a` is finite; infinite where `b` then is not."""
    if a.shape != b.shape:
        return float("inf")
    finite = a.isfinite()
    a, b = a[finite], b[finite]
    if a.numel() == 0 or torch.equal(a, b):
        return 0.0
    size = float(a.square().mean().sqrt())
    error = float((a - b).square().mean().sqrt())
    return error / size if size and error == error else float("inf")
