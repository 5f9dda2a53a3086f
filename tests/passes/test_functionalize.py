"""Programs that mutate, before and after `functionalize`: the same outputs, inputs, state, sharing."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.ir import parse
from smelt.ops.effects import effects
from smelt.ops.evaluate import evaluate
from smelt.passes.manager import compare, observe, run_passes
from smelt.passes.mutation.functionalize import functionalize

T = torch.arange(12.0).reshape(3, 4)


def check(text: str, *inputs: torch.Tensor, remaining: int = 0, state: dict[str, torch.Tensor] | None = None) -> str:
    graph = parse(text)
    before = graph.clone()
    run_passes(graph, [functionalize])

    def lookup(kind: str, path: str) -> torch.Tensor:
        return (state or {})[path]

    left, right = observe(graph, inputs, lookup), observe(before, inputs, lookup)
    assert not compare(left, right), f"{compare(left, right)}\n{graph}"
    assert left.sharing == right.sharing, f"{left.sharing} for {right.sharing}\n{graph}"
    in_place = [n for n in graph.walk() if effects(n).writes and n.op != "write"]
    assert len(in_place) == remaining, str(graph)
    text_again = str(graph)
    run_passes(graph, [functionalize])
    assert str(graph) == text_again
    return text_again


def test_write_to_an_input_is_written_back() -> None:
    text = check(
        """graph f(%x: f32[3, 4]) -> f32[3, 4] {
          %a: f32[3, 4] = aten.add_.Tensor(%x, 1)
          %b: f32[3, 4] = aten.sin.default(%x)
          return %b
        }""",
        T,
    )
    assert "write(%x, " in text


def test_write_through_a_view_is_seen_by_the_base_and_other_views() -> None:
    check(
        """graph f(%x: f32[3, 4]) -> f32[3, 4], f32[4], f32[4, 3]{1, 4} {
          %v: f32[4] = aten.select.int(%x, 0, 1)
          %t: f32[4, 3]{1, 4} = aten.t.default(%x)
          %a: f32[4] = aten.mul_.Tensor(%v, 2)
          %s: f32[4, 3]{1, 4} = aten.sin.default(%t)
          return %x, %a, %s
        }""",
        T,
    )


@pytest.mark.parametrize(
    ("view", "type_"),
    [
        ("aten.view.default(%b, [2, 6])", "f32[2, 6]"),
        ("aten.t.default(%b)", "f32[4, 3]{1, 4}"),
        ("aten.transpose.int(%b, 0, -1)", "f32[4, 3]{1, 4}"),
        ("aten.permute.default(%b, [1, 0])", "f32[4, 3]{1, 4}"),
        ("aten.permute.default(%c, [2, 0, 1])", "f32[2, 3, 2]{1, 4, 2}"),
        ("aten.select.int(%b, 1, -2)", "f32[3]{4}"),
        ("aten.slice.Tensor(%b, 1, 0, 9223372036854775807, 2)", "f32[3, 2]{4, 2}"),
        ("aten.slice.Tensor(%b, 0, -2)", "f32[2, 4]"),
        ("aten.narrow.default(%b, 1, 1, 2)", "f32[3, 2]{4, 1}"),
        ("aten.diagonal.default(%b)", "f32[3]{5}"),
        ("aten.unsqueeze.default(%b, 1)", "f32[3, 1, 4]{4, 4, 1}"),
        ("aten.detach.default(%b)", "f32[3, 4]"),
        ("aten.reshape.default(%b, [12])", "f32[12]"),
        ("aten.flatten.using_ints(%b)", "f32[12]"),
        ("aten.contiguous.default(%b)", "f32[3, 4]"),
        ("aten.mT.default(%b)", "f32[4, 3]{1, 4}"),
        ("aten.movedim.int(%b, 0, 1)", "f32[4, 3]{1, 4}"),
        ("aten._neg_view.default(%b)", "f32[3, 4]"),
        ("aten.conj.default(%b)", "f32[3, 4]"),
        ("aten.mH.default(%b)", "f32[4, 3]{1, 4}"),
    ],
)
@pytest.mark.parametrize("local", [False, True])
def test_each_view_can_be_written_through(view: str, type_: str, local: bool) -> None:
    source = "aten.clone.default(%x)" if local else "aten.alias.default(%x)"
    check(
        f"""graph f(%x: f32[3, 4]) -> f32[3, 4], {type_}, f32[3, 4] {{
          %b: f32[3, 4] = {source}
          %c: f32[3, 2, 2] = aten.view.default(%b, [3, 2, 2])
          %v: {type_} = {view}
          %m: {type_} = aten.add_.Tensor(%v, 0.5)
          %n: {type_} = aten.mul_.Tensor(%v, %m)
          %y: f32[3, 4] = aten.exp.default(%b)
          return %y, %v, %b
        }}""",
        T,
    )


@pytest.mark.parametrize(
    ("view", "type_"),
    [
        ("aten._conj.default(%b)", "c64[3, 4]"),
        ("aten.conj.default(%b)", "c64[3, 4]"),
        ("aten.adjoint.default(%b)", "c64[4, 3]{1, 4}"),
        ("aten.mH.default(%b)", "c64[4, 3]{1, 4}"),
        ("aten.matrix_H.default(%b)", "c64[4, 3]{1, 4}"),
    ],
)
def test_each_conjugate_can_be_written_through(view: str, type_: str) -> None:
    check(
        f"""graph f(%x: c64[3, 4]) -> c64[3, 4], {type_}, c64[3, 4] {{
          %b: c64[3, 4] = aten.clone.default(%x)
          %v: {type_} = {view}
          %m: {type_} = aten.add_.Tensor(%v, complex(0.5, 2.0))
          %n: {type_} = aten.mul_.Tensor(%v, %m)
          %y: c64[3, 4] = aten.mul.Tensor(%b, 2)
          return %y, %v, %b
        }}""",
        torch.complex(T, T + 1),
    )


def test_copy_that_reshape_had_to_make_is_not_written_through() -> None:
    check(
        """graph f(%x: f32[3, 4]) -> f32[12], f32[3, 4] {
          %t: f32[4, 3]{1, 4} = aten.t.default(%x)
          %v: f32[12] = aten.reshape.default(%t, [12])
          %m: f32[12] = aten.add_.Tensor(%v, 1)
          return %v, %x
        }""",
        T,
    )


def test_elements_of_a_split() -> None:
    check(
        """graph f(%x: f32[3, 4]) -> f32[3, 4], f32[3, 2]{4, 1} {
          %l: (f32[3, 2]{4, 1}, f32[3, 2]{4, 1}) = aten.chunk.default(%x, 2, 1)
          %a: f32[3, 2]{4, 1}, %b: f32[3, 2]{4, 1} = unpack(%l)
          %m: f32[3, 2]{4, 1} = aten.copy_.default(%b, %a)
          %n: f32[3, 2]{4, 1} = aten.neg_.default(%a)
          return %x, %b
        }""",
        T,
    )


def test_the_short_last_part_of_a_split() -> None:
    check(
        """graph f(%x: f32[3, 4]) -> f32[3, 4], f32[3, 1]{4, 1} {
          %l: (f32[3, 3]{4, 1}, f32[3, 1]{4, 1}) = aten.split.Tensor(%x, 3, 1)
          %a: f32[3, 3]{4, 1}, %b: f32[3, 1]{4, 1} = unpack(%l)
          %m: f32[3, 1]{4, 1} = aten.add_.Tensor(%b, 1)
          %n: f32[3, 3]{4, 1} = aten.mul_.Tensor(%a, %b)
          return %x, %b
        }""",
        T,
    )


def test_rows_of_an_unbind() -> None:
    check(
        """graph f(%x: f32[3, 4]) -> f32[3, 4] {
          %l: (f32[4], f32[4], f32[4]) = aten.unbind.int(%x)
          %a: f32[4], %b: f32[4], %c: f32[4] = unpack(%l)
          %m: f32[4] = aten.zero_.default(%b)
          %n: f32[4] = aten.add_.Tensor(%c, %a)
          return %x
        }""",
        T,
    )


def test_state_is_written_back() -> None:
    text = check(
        """graph f(%x: f32[4]) -> f32[4] {
          %n: f32[4] = buffer("mean")
          %m: f32[4] = aten.mul_.Tensor(%n, 0.5)
          %o: f32[4] = aten.add_.Tensor(%m, %x)
          return %o
        }""",
        torch.ones(4),
        state={"mean": torch.arange(4.0)},
    )
    assert text.count("write(") == 1


def test_training_batch_norm_updates_its_statistics() -> None:
    check(
        """graph f(%x: f32[5, 4]) -> f32[5, 4], f32[4] {
          %mean: f32[4] = buffer("mean")
          %var: f32[4] = buffer("var")
          %y: f32[5, 4] = aten.batch_norm.default(%x, None, None, %mean, %var, True, 0.1, 1e-05, True)
          return %y, %mean
        }""",
        torch.randn(5, 4, generator=torch.Generator().manual_seed(1)),
        state={"mean": torch.zeros(4), "var": torch.ones(4)},
    )


def test_a_result_of_a_replaced_node_is_written_later() -> None:
    check(
        """graph f(%x: f32[5, 4]) -> f32[5, 4], f32[5]{4} {
          %mean: f32[4] = buffer("mean")
          %var: f32[4] = buffer("var")
          %y: f32[5, 4] = aten.batch_norm.default(%x, None, None, %mean, %var, True, 0.1, 1e-05, True)
          %r: f32[5, 4] = aten.relu_.default(%y)
          %v: f32[5]{4} = aten.select.int(%r, 1, 0)
          %f: f32[5]{4} = aten.fill_.Scalar(%v, 1)
          %s: f32[5, 2]{4, 2} = aten.slice.Tensor(%y, 1, 0, 9223372036854775807, 2)
          %m: f32[5, 2]{4, 2} = aten.mul_.Tensor(%s, 2)
          %c: f32[5, 2]{4, 2} = aten.copy_.default(%s, %m)
          return %r, %v
        }""",
        torch.randn(5, 4, generator=torch.Generator().manual_seed(1)),
        state={"mean": torch.zeros(4), "var": torch.ones(4)},
    )


def test_out_variants() -> None:
    check(
        """graph f(%x: f32[3, 4], %o: f32[3, 4]) -> f32[3, 4], f32[3, 4] {
          %r: f32[3, 4] = aten.add.out(%x, %x, out=%o)
          %s: f32[3, 4] = aten.sin.out(%r, out=%o)
          return %s, %r
        }""",
        T,
        torch.zeros(3, 4),
    )


def test_operators_in_place_of_bits() -> None:
    text = check(
        """graph f(%x: i64[4], %m: bool[4]) -> i64[4], bool[4] {
          %v: i64[3] = aten.slice.Tensor(%x, 0, 0, 3)
          %a: i64[3] = aten.__ior__.Scalar(%v, 5)
          %l: i64[3] = aten.__ilshift__.Scalar(%a, 2)
          %b: bool[4] = aten.__ixor__.Tensor(%m, %m)
          %r: bool[4] = aten.__iand__.Tensor(%b, %m)
          return %x, %r
        }""",
        torch.tensor([3, -4, 5, 8]),
        torch.tensor([True, False, True, True]),
    )
    assert "__i" not in text


def test_foreach() -> None:
    check(
        """graph f(%x: f32[4], %y: f32[2]) -> f32[4] {
          aten._foreach_mul_.Scalar([%x, %y], 2.0)
          aten._foreach_add_.List([%x, %y], [%x, %y], alpha=0.5)
          return %x
        }""",
        torch.arange(4.0),
        torch.ones(2),
    )
    text = check(
        """graph f(%x: f32[4], %y: f32[2]) -> f32[4], f32[4], f32[2] {
          aten._foreach_maximum_.List([%x, %y], [%x, %y])
          %l: (f32[4], f32[2]) = aten._foreach_pow.ScalarAndTensor(0.5, [%x, %y])
          %a: f32[4], %b: f32[2] = unpack(%l)
          aten._foreach_sub_.Scalar([%a, %b], 1)
          return %x, %a, %b
        }""",
        torch.arange(4.0),
        torch.ones(2),
    )
    assert "_foreach" not in text


@pytest.mark.parametrize("worst", [1.0, float("inf"), float("nan")])
@pytest.mark.parametrize(("scale", "tracker"), [(1024.0, 0), (1024.0, 1), (3e38, 1)])
def test_gradient_scaling(worst: float, scale: float, tracker: int) -> None:
    text = check(
        """graph f(%x: f32[4], %y: f16[2], %s: f32[], %t: i32[], %f: f32[], %i: f32[]) -> f32[4] {
          aten._amp_foreach_non_finite_check_and_unscale_.default([%x], %f, %i)
          aten._amp_foreach_non_finite_check_and_unscale_.default([%y], %f, %i)
          %u: f32[] = aten._amp_update_scale_.default(%s, %t, %f, 1.7, 0.3, 2)
          return %x
        }""",
        torch.arange(4.0) * worst,
        torch.ones(2, dtype=torch.float16),
        torch.tensor(scale),
        torch.tensor(tracker, dtype=torch.int32),
        torch.tensor(0.0),
        torch.tensor(1 / 1024),
    )
    assert "_amp_" not in text


def test_fill_setitem_and_index_put() -> None:
    check(
        """graph f(%x: f32[3, 4], %i: i64[2]) -> f32[3, 4] {
          %e: f32[3, 4] = aten.empty_like.default(%x)
          %z: f32[3, 4] = aten.fill_.Scalar(%e, 7.0)
          %v: f32[4] = aten.select.int(%z, 0, 2)
          %c: f32[4] = aten.copy_.default(%v, 3)
          %k: f32[4] = aten.clone.default(%v)
          %p: f32[3, 4] = aten.index_put_.default(%z, [%i], %k)
          return %e
        }""",
        T,
        torch.tensor([0, 1]),
    )


def test_in_place_keeps_dtype_and_strides() -> None:
    check(
        """graph f(%x: bf16[3, 4]{1, 3}, %y: f32[3, 4]) -> bf16[3, 4]{1, 3} {
          %a: bf16[3, 4]{1, 3} = aten.mul_.Tensor(%x, %y)
          return %a
        }""",
        torch.arange(12.0).reshape(4, 3).t().to(torch.bfloat16),
        T,
    )


def test_write_to_every_second_column_of_a_strided_input() -> None:
    check(
        """graph f(%x: f32[3, 2]{4, 2}) -> f32[3, 2]{4, 2}, f32[3]{4} {
          %v: f32[3]{4} = aten.select.int(%x, 1, 1)
          %a: f32[3]{4} = aten.exp_.default(%v)
          return %x, %v
        }""",
        T[:, ::2],
    )


def test_values_that_swap_memories_are_copied_before_any_is_written() -> None:
    check(
        """graph f(%x: f32[4], %y: f32[4]) -> f32[4] {
          %k: f32[4] = aten.clone.default(%x)
          %a: f32[4] = aten.copy_.default(%x, %y)
          %b: f32[4] = aten.copy_.default(%y, %k)
          return %y
        }""",
        torch.arange(4.0),
        torch.ones(4),
    )


def test_reads_before_a_write_keep_the_old_content() -> None:
    check(
        """graph f(%x: f32[4]) -> f32[4], f32[4] {
          %v: f32[2] = aten.slice.Tensor(%x, 0, 0, 2)
          %old: f32[2] = aten.sin.default(%v)
          %a: f32[4] = aten.add_.Tensor(%x, 1)
          %new: f32[2] = aten.sin.default(%v)
          %both: f32[4] = aten.cat.default([%old, %new])
          return %both, %x
        }""",
        torch.arange(4.0),
    )


def test_random_fills_of_rows_are_functional() -> None:
    check(
        """graph f(%x: f32[4]) -> f32[4] {
          %e: f32[4] = aten.empty_like.default(%x)
          %r: f32[4] = aten.uniform_.default(%e)
          %s: f32[4] = aten.mul_.Tensor(%e, 2)
          return %s
        }""",
        torch.arange(4.0),
    )


def test_random_fills_that_do_not_lie_row_by_row_stay() -> None:
    check(
        """graph f(%x: f32[3, 4]) -> f32[4, 3]{1, 4} {
          %e: f32[3, 4] = aten.mul.Tensor(%x, 2)
          %t: f32[4, 3]{1, 4} = aten.t.default(%e)
          %r: f32[4, 3]{1, 4} = aten.uniform_.default(%t)
          %s: f32[4, 3]{1, 4} = aten.mul_.Tensor(%r, 2)
          return %s
        }""",
        torch.ones(3, 4),
        remaining=2,
    )


def test_places_in_a_storage_stay() -> None:
    check(
        """graph f(%x: f32[4]) -> f32[4] {
          %v: f32[2]{2} = aten.as_strided.default(%x, [2], [2], 1)
          %s: f32[2]{2} = aten.mul_.Tensor(%v, 2)
          return %x
        }""",
        torch.arange(4.0),
        remaining=1,
    )


def test_control_flow_reads_the_current_content() -> None:
    check(
        """graph f(%x: f32[4], %c: bool[]) -> f32[4] {
          %k: f32[4] = aten.clone.default(%x)
          %a: f32[4] = aten.add_.Tensor(%k, 1)
          %r: f32[4] = if %c {
            %s: f32[4] = aten.sin.default(%k)
            yield %s
          } else {
            %d: f32[4] = aten.clone.default(%k)
            %e: f32[4] = aten.mul_.Tensor(%d, 3)
            yield %e
          }
          %z: f32[4] = aten.zero_.default(%k)
          return %r
        }""",
        torch.arange(4.0),
        torch.tensor(False),
    )


def test_a_write_inside_a_branch_is_one_more_result() -> None:
    text = check(
        """graph f(%x: f32[4], %c: bool[]) -> f32[4] {
          %a: f32[4] = aten.add_.Tensor(%x, 1)
          %r: f32[4] = if %c {
            %s: f32[4] = aten.sin_.default(%x)
            yield %s
          } else {
            yield %x
          }
          return %r
        }""",
        torch.arange(4.0),
        torch.tensor(True),
    )
    assert "write(%x, " in text


def test_tensors_of_unknown_sizes_are_written_whole() -> None:
    text = check(
        """graph f(%x: f32[4], %m: bool[4], %n: int) -> f32[_], f32[_] {
          %k: f32[_] = aten.masked_select.default(%x, %m)
          for %i: int in (0, %n, 1) with () {
            %a: f32[_] = aten.add_.Tensor(%k, %i)
            %b: f32[_] = aten.mul_.Tensor(%a, 2)
            yield
          }
          %s: f32[_] = aten.sin.default(%k)
          return %k, %s
        }""",
        torch.arange(4.0),
        torch.tensor([True, False, True, True]),
        3,  # type: ignore[arg-type]
    )
    assert "with (" in text and "add_" not in text


def test_a_norm_in_training_is_added_to_another_one_in_place() -> None:
    text = check(
        """graph f(%x: f32[2, 3, 2]) -> f32[2, 3, 2] {
          %ma: f32[3] = buffer("ma")
          %va: f32[3] = buffer("va")
          %mb: f32[3] = buffer("mb")
          %vb: f32[3] = buffer("vb")
          %a: f32[2, 3, 2] = aten.batch_norm.default(%x, None, None, %ma, %va, True, 0.1, 1e-05, True)
          %b: f32[2, 3, 2] = aten.batch_norm.default(%x, None, None, %mb, %vb, True, 0.1, 1e-05, True)
          %c: f32[2, 3, 2] = aten.add_.Tensor(%a, %b)
          return %c
        }""",
        torch.arange(12.0).reshape(2, 3, 2),
        state={"ma": torch.zeros(3), "va": torch.ones(3), "mb": torch.zeros(3), "vb": torch.ones(3)},
    )
    assert "add.Tensor" in text


def test_views_of_views_are_written_back_once() -> None:
    """Each of n writes goes through one view more than the last: n nodes put it back, not n * n / 2."""

    def program(cut: str, size: int) -> str:
        lines, at, n = ["%v0: f32[16] = aten.clone.default(%x)"], "%v0", 16
        for i in range(8):
            lines.append(f"%w{i}: f32[{n}] = aten.mul_.Tensor({at}, 2)")
            n -= size
            lines.append(f"%v{i + 1}: f32[{n}] = aten.slice.Tensor({at}, 0, {cut})")
            at = f"%v{i + 1}"
        body = "\n".join(lines)
        return f"graph f(%x: f32[16]) -> f32[{n}], f32[16] {{\n{body}\nreturn {at}, %v0\n}}"

    x = torch.arange(16.0)
    part = check(program("1, 9223372036854775807", 1), x)
    assert part.count("slice_scatter") == 7
    whole = check(program("0, 9223372036854775807", 0), x)
    assert "slice_scatter" not in whole


def test_a_view_that_is_ahead_is_seen_by_all_others() -> None:
    check(
        """graph f(%x: f32[3, 4]) -> f32[3, 4], f32[4], f32[2], f32[4] {
          %a: f32[2, 4] = aten.slice.Tensor(%x, 0, 1, 3)
          %b: f32[4] = aten.select.int(%a, 0, 0)
          %c: f32[2] = aten.slice.Tensor(%b, 0, 1, 3)
          %other: f32[4] = aten.select.int(%x, 0, 1)
          %1: f32[2, 4] = aten.mul_.Tensor(%a, 2)
          %2: f32[4] = aten.add_.Tensor(%b, 1)
          %3: f32[2] = aten.mul_.Tensor(%c, 3)
          %s: f32[4] = aten.sin.default(%other)
          %4: f32[4] = aten.add_.Tensor(%other, 1)
          %5: f32[2] = aten.mul_.Tensor(%c, 5)
          %6: f32[2, 4] = aten.sub_.Tensor(%a, 1)
          %d: f32[4] = aten.cos.default(%b)
          return %x, %s, %c, %d
        }""",
        T,
    )


def test_what_eager_refuses_to_write_from_itself_is_refused_by_a_sources_graph() -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = torch.ones(4)
        y.index_put_((index,), y, accumulate=True)
        return y + x

    scripted = smelt.script(program)
    inputs = scripted.inputs_for(torch.ones(4), torch.tensor([0, 1, 2, 3]))
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        evaluate(scripted.graph, inputs, scripted.unit.lookup)
