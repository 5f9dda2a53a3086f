"""Seeded bugs of the converter."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PROGRAMS = "tests/convert/test_programs.py::test_converted_means_the_same"
_RANDOM = "tests/convert/test_random.py"
_SCRAMBLED = f"{_RANDOM}::test_random_programs_whose_other_arms_run_for_nothing"
_SOURCE = "tests/convert/test_source.py"
_SWAP = "tests/convert/test_swap.py"
_HERE = "capture/convert"

CONVERTER = (
    Mutant(
        "convert: break and the rest of the iteration",
        f"{_HERE}/statements.py",
        "        self._set_flag(within.broken)\n        self._set_flag(within.left)\n\n    def _do_Continue",
        "        self._set_flag(within.broken)\n\n    def _do_Continue",
        "what follows a nested break still runs in that iteration",
        (_PROGRAMS,),
    ),
    Mutant(
        "convert: return out of an outer loop",
        f"{_HERE}/statements.py",
        "        for within in body.loops:\n            self._set_flag(within.broken)",
        "        for within in body.loops[-1:]:\n            self._set_flag(within.broken)",
        "a return in a nested loop ends only the inner one",
        (_PROGRAMS,),
    ),
    Mutant(
        "convert: else of a loop",
        f"{_HERE}/statements.py",
        "if within.broken is not None and loop.orelse:",
        "if False:",
        "a loop's else runs after a break",
        (_PROGRAMS,),
    ),
    Mutant(
        "convert: else of a try",
        f"{_HERE}/structure.py",
        "if orelse and exits_of_all(node.body):",
        "if False:",
        "a try's else runs though its body returned",
        (_PROGRAMS,),
    ),
    Mutant(
        "convert: rest in the wrong arm",
        f"{_HERE}/structure.py",
        "(node.body, [*node.orelse, *rest]) if first",
        "(node.body, [*rest, *node.orelse]) if first",
        "what follows an if runs before its else",
        (_PROGRAMS, _RANDOM),
    ),
    Mutant(
        "convert: names of nested arms",
        f"{_HERE}/builder.py",
        "            outer.writes |= body.frame.writes - body.frame.own\n",
        "            pass\n",
        "an arm's names miss what is bound in an arm of it",
        (_SCRAMBLED,),
    ),
    Mutant(
        "convert: variables that closures rebind",
        f"{_HERE}/builder.py",
        "names = sorted(writes | scope.indirect)",
        "names = sorted(writes)",
        "an arm's names miss what a function called there rebinds",
        (_SCRAMBLED,),
    ),
    Mutant(
        "convert: unbinding",
        f"{_HERE}/helpers.py",
        "            if value is UNDEF:\n                del cell.cell_contents\n            else:\n",
        "            if value is not UNDEF:\n",
        "a variable that was bound in an arm run for nothing stays bound",
        (_SCRAMBLED,),
    ),
    Mutant(
        "convert: truth asked twice",
        f"{_HERE}/expressions.py",
        "            case ast.BoolOp():\n                lowered = self._logic(node, retested=True, valued=valued)",
        "            case ast.BoolOp():\n                lowered = self._logic(node, retested=False, valued=None)",
        "the operands of an and that is tested are asked for their truth twice",
        (_PROGRAMS,),
    ),
    Mutant(
        "convert: unbound locals",
        f"{_HERE}/builder.py",
        "if not is_sure and (body.depth or not is_own) and body.scope.may_miss(name):",
        "if False:",
        "an unbound local is a NameError of a free variable in an arm",
        (_PROGRAMS,),
    ),
    Mutant(
        "convert: order of keys and values",
        f"{_HERE}/helpers.py",
        "def store_item(rt: Runtime, at: int, v: object, o: object, k: object)",
        "def store_item(rt: Runtime, at: int, v: object, k: object, o: object)",
        "an item assignment takes its key for the container",
        (_PROGRAMS,),
    ),
    Mutant(
        "convert: edited sources",
        f"{_HERE}/source.py",
        "return compiled is not None and _same(compiled, code)",
        "return compiled is not None",
        "a function is converted from a file that was edited since",
        (_SOURCE,),
    ),
    Mutant(
        "convert: equal code of two files",
        f"{_HERE}/convert.py",
        "    key = id(code)\n    forget",
        "    key = hash(code)\n    forget",
        "a function is converted anew each time, or as another of the same text",
        (_SOURCE,),
    ),
    Mutant(
        "convert: other threads",
        f"{_HERE}/runtime.py",
        "class _Local(threading.local):",
        "class _Local:",
        "another thread runs converted code with the runtime of this one",
        (_SWAP,),
    ),
    Mutant(
        "convert: code put back",
        f"{_HERE}/swap.py",
        "        finally:\n            for function, code in olds:",
        "        finally:\n            for function, code in olds[1:]:",
        "a function keeps its converted code",
        (_SWAP,),
    ),
)
