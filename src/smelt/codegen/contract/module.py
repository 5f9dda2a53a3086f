"""Several functions as the text of one kernel."""

from __future__ import annotations

from collections.abc import Iterable

from smelt.codegen.llvm.text import FunctionText


def module_text(kernel: FunctionText, helpers: Iterable[FunctionText]) -> str:
    """The text of a finished kernel (`ret` is added here) and of the internal functions that it calls."""
    functions = [(kernel, "i32 0"), *((helper, "") for helper in helpers)]
    declarations = dict.fromkeys(line for fn, _ in functions for line in fn.declarations)
    texts = []
    told: set[str] = set()
    for fn, answer in functions:
        fn.declarations = {}
        fn.helpers = {text: None for text in fn.helpers if text not in told}
        told.update(fn.helpers)
        texts.append(fn.finish(answer))
    bodies = [text[: text.rindex("attributes #0")] for text in texts]
    attributes = texts[0][texts[0].rindex("attributes #0") :]
    return "".join([*(f"{line}\n" for line in sorted(declarations)), *bodies, attributes])
