"""Seeded bugs of the path tree, of expectations and of what is staged."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PROGRAMS = "tests/paths/test_programs.py"
_LIMITS = "tests/paths/test_limits.py"
_TRACE = "tests/paths/test_trace.py"

PATHS = (
    Mutant(
        "paths: the generator is not put back",
        "compiler/unit.py",
        "            if before is not None:\n                before.restore()\n            if isinstance(error, Miss)",
        "            if isinstance(error, Miss)",
        "a path that does not fit has drawn random numbers",
        (f"{_PROGRAMS}::test_it_is_as_in_eager",),
    ),
    Mutant(
        "paths: a miss counts as a hit",
        "compiler/object/compiled_types.py",
        "        self._hits -= 1\n",
        "        pass\n",
        "paths that never fit seem to pay",
        (f"{_PROGRAMS}::test_each_way_is_recorded_once_and_then_found",),
    ),
    Mutant(
        "paths: the newest goes",
        "compiler/object/compiled_build.py",
        "oldest = min(alike[1:], key=lambda other: other.fitted, default=alike[0])",
        "oldest = max(alike[1:], key=lambda other: other.fitted, default=alike[0])",
        "the path that is used most goes when there are too many",
        (f"{_LIMITS}::test_paths_that_are_used_stay_up_to_the_limit",),
    ),
    Mutant(
        "paths: effects hide the others",
        "compiler/object/compiled_build.py",
        "self._table.add(Row(GuardSet((), args, kwargs), None, reason, is_last=bool(missed), split=split))",
        "self._table.add(Row(GuardSet((), args, kwargs), None, reason, split=split))",
        "a way with effects sends all ways to eager",
        (f"{_LIMITS}::test_an_effect_on_one_way_only_leaves_the_others_compiled",),
    ),
    Mutant(
        "expectations: NaN in one memory",
        "capture/recording/expects.py",
        "if not found and not _is_exact(a.dtype):",
        "if False:",
        "torch.equal of a tensor with itself is told by its elements",
        ("tests/paths/test_expects.py::test_equal_of_one_memory",),
    ),
    Mutant(
        "expectations: sizes",
        "capture/recording/recorder.py",
        '                self._expect("sizes", [one], {}, size)\n',
        "                pass\n",
        "a size that follows from data is taken for fixed",
        (f"{_TRACE}::test_other_ways_name_the_line_and_both_values",),
    ),
    Mutant(
        "trace: by operators without a look at the way",
        "compiler/programs/program.py",
        "        unit.check_outcomes(inputs)\n        if unit.captured.own_backward",
        "        if unit.captured.own_backward",
        "with gradients a trace writes before it is known to hold",
        (f"{_TRACE}::test_with_gradients_other_ways_raise_before_anything_is_written",),
    ),
    Mutant(
        "staged: only the recorded way is guarded",
        "compiler/staged.py",
        "            log.reads.append(read)\n",
        "",
        "what only other ways read may change unseen",
        (f"{_PROGRAMS}::test_what_only_other_ways_read_is_guarded",),
    ),
    Mutant(
        "staged: a failed call prints again",
        "compiler/object/compiled_dispatch.py",
        "the entry stays.\n        with muted_again(printed):\n",
        "the entry stays.\n        with muted_again(None):\n",
        "what was printed before native code failed is printed twice",
        ("tests/paths/test_prints.py",),
    ),
)
