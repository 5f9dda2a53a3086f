"""One C function for all sizes of a range: the bits of Python at each, and a text for sizes that it is not for."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.package.c.export import export
from smelt.package.c.expressions import c_text, magnitude
from smelt.package.c.link import RUNTIME
from smelt.runtime.ingot.free_sizes import OPERATORS, value_of
from smelt.runtime.ingot.natives import targets
from smelt.runtime.schedule import chunk_of
from tests.ingots_c.client import Context, Failed, Library
from tests.ingots_c.conftest import Built
from tests.ingots_c.test_calls import ARGUMENT, alike


def calls_of(built: Built) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
    return ((name, inputs) for name, calls in built.calls.items() for inputs in calls)


@pytest.mark.parametrize("threads", [1, 3])
def test_results_are_pythons(ranged: Built, threads: int) -> None:
    """Also those of the sizes before, which have left the frame."""
    context, loaded = ranged.model().context(threads), ranged.loaded()
    with torch.no_grad():
        for _ in range(2):
            for name, inputs in calls_of(ranged):
                assert alike(context.call(name, *inputs), loaded.entry(name)(*inputs)), (name, inputs[0].shape)


def test_a_library_has_one_entry_point_for_all_sizes(ranged: Built) -> None:
    assert str(next(each for each in ranged.exported.signatures if each.name == "encoder")) == (
        "encoder(x0: i64[batch, tokens], x1: i64[batch, tokens]) -> out: f32[batch, 32], batch = 1..3, tokens = 1..24"
    )
    library = Library(ranged.exported)
    entry, halves = library.entries[library.number["encoder"]], library.entries[library.number["halves"]]
    described = [(s.name, s.input, s.dim, s.low, s.high) for s in entry.sizes[: entry.nsizes]]
    assert described == [(b"batch", 0, 0, 1, 3), (b"tokens", 0, 1, 1, 24)]
    mask = entry.inputs[1]
    assert list(mask.sizes[:2]) == [-1, -1] and list(mask.size_texts[:2]) == [b"batch", b"tokens"]
    out = entry.outputs[0]
    assert list(out.sizes[:2]) == [-1, 32] and list(out.size_texts[:2]) == [b"batch", None]
    assert halves.inputs[1].size_texts[0] == b"n" and halves.outputs[0].size_texts[0] == b"n // 2"


def test_threads_call_with_sizes_of_their_own(ranged: Built) -> None:
    model, loaded = ranged.model(), ranged.loaded()
    with torch.no_grad():
        calls = [(name, inputs, loaded.entry(name)(*inputs)) for name, inputs in calls_of(ranged)]
    wrong: list[str] = []

    def work(context: Context, seed: int) -> None:
        for name, inputs, wanted in random.Random(seed).sample(calls, len(calls)) * 4:
            if not alike(context.call(name, *inputs), wanted):
                wrong.append(name)

    workers = [threading.Thread(target=work, args=(model.context(1 + i % 2), i)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_sizes_that_it_is_not_for_are_refused(ranged: Built) -> None:
    context = ranged.model().context()
    ids, rows = torch.zeros(3, 24, dtype=torch.int64), torch.randn(13, 4)
    cases: dict[str, tuple[str, tuple[torch.Tensor, ...]]] = {
        "encoder: input 0, x0: size 0, batch, is 4, the program takes 1 to 3": ("encoder", (ids.new_zeros(4, 5),) * 2),
        "encoder: input 0, x0: size 1, tokens, is 0, the program takes 1 to 24": ("encoder", (ids[:, :0],) * 2),
        "encoder: input 1, x1: size 1, tokens, is 23, the program takes 24": ("encoder", (ids, ids[:, :23])),
        "encoder: input 0, x0: stride 1 is 24, the program takes 1": ("encoder", (ids[:, :3].t(), ids[:, :3])),
        "encoder: input 1, x1: the number of its dimensions is 1, the program takes 2": ("encoder", (ids, ids[0])),
        "halves: input 1, x1: size 0, n, is 5, the program takes 4": ("halves", (rows[:4], rows[:5])),
        "halves: the program takes sizes with n == (2 * (n // 2)), and here n = 5": ("halves", (rows[:5], rows[:5])),
    }
    for text, (name, inputs) in cases.items():
        with pytest.raises(Failed) as failed:
            context.call(name, *inputs)
        assert failed.value.text == text and failed.value.status == ARGUMENT
    name, inputs = next(calls_of(ranged))
    with torch.no_grad():
        assert alike(context.call(name, *inputs), ranged.loaded().entry(name)(*inputs))


def test_single_sizes_and_ranges_are_one_entry_point(tmp_path: Path) -> None:
    """Between them it says what is missing."""
    w = torch.randn(16, 3)
    with torch.no_grad():
        program = smelt.trace(lambda x: torch.tanh(x @ w), (torch.randn(4, 16),), dynamic_shapes=[{0: "rows"}])
        program.save(tmp_path / "m.ingot", sizes=[{"rows": 5}, {"rows": range(8, 11)}], targets=targets()[:1])
        exported = export(tmp_path / "m.ingot", tmp_path / "build")
        assert exported.name == "program_m"  # else -lm would be this one
        context, loaded = Library(exported).open(exported.weights).context(), smelt.load(tmp_path / "m.ingot")
        for n in (5, 8, 10, 5):
            given = torch.randn(n, 16)
            assert alike(context.call("forward", given), loaded(given))
        with pytest.raises(Failed, match="was exported without code for rows = 6: save it for these sizes"):
            context.call("forward", torch.randn(6, 16))
        program.save(tmp_path / "none.ingot", sizes=[], targets=targets()[:1])
    with pytest.raises(smelt.PackageError, match="has native code for none"):
        export(tmp_path / "none.ingot", tmp_path / "build", target=targets()[0])


def test_a_typed_function_takes_the_sizes(ranged: Built, tmp_path: Path) -> None:
    folder = ranged.exported.library.parent
    x, y = ranged.calls["halves"][3]
    numbers = [", ".join(map(repr, tensor.flatten().tolist())) for tensor in (x, y)]
    (tmp_path / "main.c").write_text(
        f"""#include <stdio.h>
#include "all.h"
int main(void)
{{
    const float x[] = {{{numbers[0]}}}, y[] = {{{numbers[1]}}};
    smelt_model *model;
    smelt_context *context;
    all_halves_result result;
    if (smelt_open(&all_program, "{ranged.exported.weights}", 0, &model) || smelt_context_new(model, &context) ||
        all_halves(context, {x.shape[0]}, x, y, &result))
        return 1;
    for (int i = 0; i < {x.shape[0] // 2 * 4}; i++)
        printf("%.9g\\n", result.out[i]);
    smelt_context_free(context);
    smelt_close(model);
    return 0;
}}
"""
    )
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", str(folder), str(tmp_path / "main.c")]
    libraries = [str(folder / "liball.a"), "-lpthread", "-lm"]
    subprocess.run(["cc", *strict, *libraries, "-o", str(tmp_path / "main")], check=True)
    out = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout
    with torch.no_grad():
        wanted = ranged.loaded().entry("halves")(x, y)
    assert torch.equal(torch.tensor(list(map(float, out.split()))), wanted.flatten())


def drawn(chosen: random.Random, depth: int) -> Any:
    if depth == 0 or chosen.random() < 0.2:
        return chosen.choice(("a", "b", chosen.randint(-9, 9)))
    name = chosen.choice(list(OPERATORS))
    count, _ = OPERATORS[name]
    return (name, *(drawn(chosen, depth - 1) for _ in range(count)))


def test_c_computes_as_python_does(tmp_path: Path) -> None:
    """Expressions of sizes, and how launches are cut into chunks."""
    chosen = random.Random(4)
    exprs = [drawn(chosen, 3) for _ in range(150)]
    sizes = [(a, b) for a in (0, 1, 6) for b in (0, 3, 10)]
    works = [(chosen.choice((1, 7, 36, 1000, 10**6)), 10.0 ** chosen.uniform(-1, 6), t) for t in (1, 2, 8, 32) * 40]
    texts = [c_text(expr, {"a": "n[0]", "b": "n[1]"}) for expr in exprs]
    shown = "".join(f'    printf("%lld\\n", (long long)({text}));\n' for text in texts)
    cut = "".join(f'    printf("%lld\\n", (long long)chunk_of({i}, {ns!r}, {t}));\n' for i, ns, t in works)
    (tmp_path / "main.c").write_text(
        f'#include "{RUNTIME / "sizes.c"}"\n'
        f"static void each(const int64_t *n)\n{{\n{shown}}}\n"
        "smelt_status smelt_fail(smelt_status status, const char *format, ...) { (void)format; return status; }\n"
        f"int main(void)\n{{\n{''.join(f'    each((int64_t[]){{{a}, {b}}});' for a, b in sizes)}\n{cut}"
        "    (void)smelt_frame_for;\n    return 0;\n}\n"
    )
    subprocess.run(
        ["cc", "-std=gnu11", "-I", str(RUNTIME), str(tmp_path / "main.c"), "-o", tmp_path / "main"], check=True
    )
    found = iter(map(int, subprocess.run([tmp_path / "main"], check=True, capture_output=True).stdout.split()))
    for a, b in sizes:
        for expr in exprs:
            wanted, value = value_of(expr, {"a": a, "b": b}), next(found)
            assert wanted is None or value == wanted, expr
            assert wanted is None or abs(wanted) <= magnitude(expr, {"a": a, "b": b}), expr
    assert list(found) == [chunk_of(*work) for work in works]
