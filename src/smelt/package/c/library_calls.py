"""Functions of libtorch's C interface as the executor calls them: with words, tensors being the runtime's.

    int32_t call_aoti_torch_cpu_histc(int64_t a0, int64_t a1, int64_t a4, double a2, double a3)
    {   lend a0; aoti_torch_cpu_histc(it, a1, a2, a3, &result); drop it; *a4 = adopt the result   }

Words come before doubles, as in the executor's records: where registers of both kinds are apart, this is the order that
the function itself takes them in.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.package.c.tables import LibraryCall


def library_call_lines(calls: Sequence[LibraryCall]) -> list[str]:
    """The C source of all."""
    return [line for call in calls for line in _lines(call)]


def _lines(call: LibraryCall) -> list[str]:
    words = [i for i, kind in enumerate(call.kinds) if kind != "double"]
    doubles = [i for i, kind in enumerate(call.kinds) if kind == "double"]
    types = ", ".join(["int64_t"] * len(words) + ["double"] * len(doubles))
    parameters = ", ".join([*(f"int64_t a{i}" for i in words), *(f"double a{i}" for i in doubles)])
    before, passed, after, given = [], [], [], []
    for i in words:
        lines, argument, drops, gives = _argument(call.kinds[i], i)
        before += lines
        passed.append(argument)
        after += drops
        given += gives
    passed += [f"a{i}" for i in doubles]
    return [
        f"extern int32_t {call.symbol}({types});",
        f"static int32_t call_{call.symbol}({parameters})",
        "{",
        *(f"    {line}" for line in before),
        f"    int32_t status = {call.symbol}({', '.join(passed)});",
        *(f"    {line}" for line in after),
        "    if (status)",
        f'        return smelt_torch_failed("{call.symbol}");',
        *(f"    {line}" for line in given),
        "    return 0;",
        "}",
    ]


def _argument(kind: str, i: int) -> tuple[list[str], str, list[str], list[str]]:
    """Of an argument: what goes before the call, what is passed, what goes after it, and what becomes of a result."""
    match kind:
        case "tensor":
            lend = f"void *t{i} = smelt_torch_lend((tensor *)(intptr_t)a{i});"
            return [lend], f"(int64_t)(intptr_t)t{i}", [f"smelt_torch_drop(t{i});"], []
        case "optional":
            lend = f"void *t{i} = a{i} ? smelt_torch_lend(*(tensor **)(intptr_t)a{i}) : NULL;"
            return [lend], f"(int64_t)(intptr_t)(a{i} ? &t{i} : NULL)", [f"smelt_torch_drop(t{i});"], []
        case "tensors" | "optionals":
            # The length follows.
            item = f"((tensor **)(intptr_t)a{i})[j]"
            if kind == "optionals":
                item = f"(((tensor ***)(intptr_t)a{i})[j] ? *((tensor ***)(intptr_t)a{i})[j] : NULL)"
            lends = [
                f"void *t{i}[64], **p{i}[64];",
                f"if (a{i + 1} > 64)",
                '    return smelt_failed(smelt_fail(SMELT_INTERNAL, "more than 64 tensors in a call of torch"));',
                f"for (int64_t j = 0; j < a{i + 1}; j++) {{",
                f"    t{i}[j] = smelt_torch_lend({item});",
                f"    p{i}[j] = t{i}[j] ? &t{i}[j] : NULL;",
                "}",
                f"(void)p{i};",
            ]
            drops = [f"for (int64_t j = 0; j < a{i + 1}; j++)", f"    smelt_torch_drop(t{i}[j]);"]
            return lends, f"(int64_t)(intptr_t){'p' if kind == 'optionals' else 't'}{i}", drops, []
        case "result":
            gives = [
                f"*(tensor **)(intptr_t)a{i} = smelt_torch_adopt(t{i});",
                f"if (!*(tensor **)(intptr_t)a{i})",
                "    return 1;",
            ]
            return [f"void *t{i} = NULL;"], f"(int64_t)(intptr_t)&t{i}", [], gives
    return [], f"a{i}", [], []
