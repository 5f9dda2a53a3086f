"""Seeded bugs of gradients: rules of operators, control flow, the cut, autograd's node, and whole steps."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_VJPS = "tests/autodiff/test_vjps.py"
_CHECKED = "tests/autodiff/test_gradcheck.py::test_gradients_are_those_of_differences"
_KINKS = "tests/autodiff/test_kinks.py"
_CONTROL = "tests/autodiff/test_control.py"
_HALVES = "tests/autodiff/test_halves.py"
_FORMS = "tests/autodiff/test_forms.py"
_MODELS = "tests/training/test_compiled_training.py"
_PATHS = "tests/training/test_control_flow.py"
_WRITES = "tests/training/test_writes.py"
_CALLER = "tests/training/test_writes_by_the_caller.py"
_BETWEEN = "tests/training/test_between_forward_and_backward.py"
_BAD = "tests/training/test_bad_steps.py::test_eagers_errors_and_numbers"
_STEP = "tests/training/test_whole_step.py"
_RULES = "ops/catalogue/gradients"


def _own(name: str) -> tuple[str, ...]:
    return (f"{_VJPS}::test_own_gradient[{name}]",)


VJPS = (
    Mutant(
        "vjp: a factor",
        f"{_RULES}/pointwise.py",
        '"tanh": lambda g, x, y: g * (1 - y * y),',
        '"tanh": lambda g, x, y: g * (1 - y),',
        "the slope of tanh is linear in its result",
        _own("aten.tanh.default"),
    ),
    Mutant(
        "vjp: a sign",
        f"{_RULES}/pointwise.py",
        '"cos": lambda g, x, y: g * -x.op("sin.default"),',
        '"cos": lambda g, x, y: g * x.op("sin.default"),',
        "the cosine grows where it falls",
        _own("aten.cos.default"),
    ),
    Mutant(
        "vjp: alpha of a difference",
        f"{_RULES}/pointwise.py",
        '"other": lambda: _scaled(-g, call.get("alpha", 1))}',
        '"other": lambda: -g}',
        "the factor of what is subtracted is left out",
        (f"{_KINKS}::test_values[sub.Tensor]",),
    ),
    Mutant(
        "vjp: a power of 0",
        f"{_RULES}/pointwise.py",
        "return where(exponent.equals(0), 0, g * (exponent * base ** (exponent - 1)))",
        "return g * (exponent * base ** (exponent - 1))",
        "0 ** 0 has the gradient NaN",
        (f"{_KINKS}::test_values[pow.Tensor_Tensor]",),
    ),
    Mutant(
        "vjp: relu at NaN",
        f"{_RULES}/pointwise.py",
        "where(y <= 0, 0, g),  # of NaN it is g",
        "g.where(y > 0),",
        "a gradient is 0 where eager's is not",
        (f"{_KINKS}::test_values[relu.default]",),
    ),
    Mutant(
        "vjp: halves of a gate",
        f"{_RULES}/pointwise.py",
        "for start in (0, half))\n        open_",
        "for start in (half, 0))\n        open_",
        "the gate is taken for the value",
        (f"{_CHECKED}[aten.glu.default]",),
    ),
    Mutant(
        "vjp: ties",
        f"{_RULES}/reductions.py",
        "    return g * mask / mask.sum(dims, True)\n",
        "    return g * mask\n",
        "of equal extremes each gets the whole gradient",
        _own("aten.amax.default"),
    ),
    Mutant(
        "vjp: freedom of a variance",
        f"{_RULES}/reductions.py",
        "for dim in counted]) - _correction(call)",
        "for dim in counted])",
        "the correction of a variance is left out of its gradient",
        _own("aten.var.correction"),
    ),
    Mutant(
        "vjp: a norm at 0",
        f"{_RULES}/reductions.py",
        "return g * where(norm.equals(0), 0, x / norm)",
        "return g * (x / norm)",
        "the norm of zeros has the gradient NaN",
        (f"{_KINKS}::test_values[linalg_vector_norm.default]",),
    ),
    Mutant(
        "vjp: softmax",
        f"{_RULES}/reductions.py",
        'return {"self": lambda: (g - (g * y).sum((call["dim"],), True)) * y}',
        'return {"self": lambda: (g - g.sum((call["dim"],), True) * y) * y}',
        "what softmax hands back is weighted wrongly",
        _own("aten.softmax.int"),
    ),
    Mutant(
        "vjp: factors that are 0",
        f"{_RULES}/reductions.py",
        'others = where(own, 1, flat.op("unsqueeze.default", dim)).op("prod.dim_int", dim + 1)',
        'others = flat.op("prod.dim_int", dim, True) / flat',
        "of a product with a 0 the gradient is NaN",
        (f"{_CHECKED}[aten.prod.default]",),
    ),
    Mutant(
        "vjp: broadcasting",
        "autodiff/shapes.py",
        "            dims.append(extra + i)\n",
        "            dims.append(i)\n",
        "a gradient is summed over other dimensions than those that were broadcast",
        (f"{_KINKS}::test_values[mul.Tensor]",),
    ),
    Mutant(
        "vjp: a centre",
        f"{_RULES}/norms.py",
        "            inner = inner - mean(g, self.dims)\n",
        "            pass\n",
        "a layer norm's gradient leaves out that the mean moves",
        _own("aten.layer_norm.default"),
    ),
    Mutant(
        "vjp: the bias of rows",
        f"{_RULES}/products.py",
        '"bias": lambda: b.call("aten.sum.dim_IntList", rows(), (0,)),',
        '"bias": lambda: b.call("aten.mean.dim", rows(), (0,)),',
        "the gradient of a bias is averaged",
        _own("aten.linear.default"),
    ),
    Mutant(
        "vjp: places that are used twice",
        f"{_RULES}/indexing.py",
        'return reshaped(b, b.call("aten.index_put.default", room, (call["index"],), grad, True), kind.sizes)',
        'return reshaped(b, b.call("aten.index_put.default", room, (call["index"],), grad), kind.sizes)',
        "of an element that was taken twice one gradient is lost",
        (f"{_CHECKED}[aten.take.default]",),
    ),
    Mutant(
        "vjp: rows that are ignored",
        f"{_RULES}/losses.py",
        "        return g.where(self.valid)\n",
        "        return g\n",
        "ignored rows of a cross entropy have gradients",
        ("tests/autodiff/test_loss_gradients.py",),
    ),
    Mutant(
        "vjp: a permutation",
        f"{_RULES}/views.py",
        "tuple(dims.index(d) for d in range(len(dims))))",
        "tuple(dims))",
        "a gradient is permuted once more instead of back",
        _own("aten.permute.default"),
    ),
    Mutant(
        "form: dropout's order",
        f"{_RULES}/forms.py",
        "    if kind.strides is None or not kind.is_static:\n        return None\n    return tuple(sorted(",
        "    if kind.strides is None or kind.is_static:\n        return None\n    return tuple(sorted(",
        "dropout of a transposed tensor drops other elements than eager",
        (f"{_FORMS}::test_dropout_draws_as_eager",),
    ),
)

CONTROL = (
    Mutant(
        "loop: iterations forwards",
        "autodiff/control.py",
        "j = minus(b, minus(b, count, 1), at)",
        "j = at",
        "the gradient of a loop goes through its iterations in the order of the loop",
        (f"{_CONTROL}::test_gradients",),
    ),
    Mutant(
        "loop: what all iterations use",
        "autodiff/control.py",
        'found.append(total if more is None else b.call("aten.add.Tensor", total, more))',
        "found.append(total if more is None else more)",
        "of a weight that each iteration uses the first one's gradient is all that is left",
        (f"{_CONTROL}::test_gradients",),
    ),
    Mutant(
        "loop: a step",
        "autodiff/loops.py",
        'scaled = number if step == 1 else b.call("py.mul", number, step)',
        "scaled = number",
        "the gradient of a loop in steps counts by ones",
        (f"{_CONTROL}::test_gradients[in_steps]",),
    ),
    Mutant(
        "branch: an arm without a use",
        "autodiff/presence.py",
        "arms[0].get(value, _ABSENT) | arms[1].get(value, _ABSENT))",
        "arms[0].get(value, _ABSENT) & arms[1].get(value, _ABSENT))",
        "a gradient is zeros where no path leads to the leaf, and optimizers move it",
        (_PATHS,),
    ),
)

CUT = (
    Mutant(
        "cut: draws are repeated",
        "autodiff/cut.py",
        '    if not _is_repeatable(node) or node.op in ("expect", NAME):\n        return False\n',
        '    if node.op in ("expect", NAME):\n        return False\n    if effects(node).rng:\n        return True\n',
        "dropout's mask is drawn again on the way back",
        (_HALVES, _MODELS),
    ),
    Mutant(
        "cut: what is written later",
        "autodiff/halves.py",
        'difference(v for n in graph.body if n.op == "write" for v in values_in(n.args[0]))',
        "difference(())",
        "a buffer is read on the way back, after it was written",
        (f"{_MODELS}::test_a_buffer_that_is_written_after_its_use",),
    ),
    Mutant(
        "cut: products are done twice",
        "autodiff/cut.py",
        "return cost(node).nbytes // _MOVED if _is_pass(node) else INFINITE",
        "return cost(node).nbytes // _MOVED",
        "the backward half does the forward's products once more",
        (_HALVES,),
    ),
    Mutant(
        "cut: the other way of an edge",
        "autodiff/flow.py",
        "            self._left[edge ^ 1] += flow\n",
        "            pass\n",
        "a flow cannot be taken back, so the cut is not the smallest",
        (f"{_HALVES}::test_the_smallest_cut",),
    ),
)

NODE = (
    Mutant(
        "node: a result without a gradient",
        "compiler/training/trainable.py",
        "        return [None if absent else grad for grad, absent in zip(found, self._absent[given], strict=True)]",
        "        return found",
        "a leaf of an unused result gets zeros, which eager does not give",
        (f"{_MODELS}::test_unused_results_leave_no_gradient",),
    ),
    Mutant(
        "node: a gradient's layout",
        "compiler/training/trainable.py",
        "            elif grad.stride() != steps and grad.numel() and is_plain_anywhere(grad):",
        "            elif False:",
        "an expanded gradient of a result is read as if it were row-major",
        (f"{_BETWEEN}::test_scenarios[expanded]", f"{_BETWEEN}::test_scenarios"),
    ),
    Mutant(
        "node: data that are replaced",
        "compiler/training/trainable.py",
        "                saved[position] = ctx.leaves.get(number, saved[position])",
        "                pass",
        "the gradient is that of data which `p.data = ...` put there after forward",
        (f"{_BETWEEN}::test_scenarios",),
    ),
    Mutant(
        "node: hidden writes",
        "compiler/training/training.py",
        "    if hidden is not None:",
        "    if False:",
        "a write under no_grad changes the history of what it writes to",
        (f"{_MODELS}::test_writes_where_autograd_does_not_look",),
    ),
    Mutant(
        "node: writes to what a gradient needs",
        "compiler/training/training.py",
        "    if late is not None:",
        "    if False:",
        "where eager raises on the way back a gradient comes out",
        (f"{_WRITES}::test_eagers_errors",),
    ),
    Mutant(
        "node: writes to what eager saves",
        "compiler/training/trainable.py",
        "        self.watched_outputs = tuple(sorted(outputs))",
        "        self.watched_outputs = ()",
        "a gradient comes out where eager saved a result that was written to since",
        (_CALLER,),
    ),
    Mutant(
        "node: writes to what eager does not save",
        "autodiff/halves.py",
        "    _copy_outputs(forward, [joint.count + i for i, value in enumerate(saved) if value in open_])",
        "",
        "the gradient is that of what an argument became after forward",
        (_CALLER,),
    ),
    Mutant(
        "node: sparse gradients",
        "autodiff/reverse.py",
        '    return call.get("sparse") is True or call.get("sparse_grad") is True',
        "    return False",
        "a sparse gradient becomes a dense one",
        (f"{_BETWEEN}::test_gradients_of_an_embedding_that_are_sparse", f"{_BAD}[a_step-Sparse-model, SGD]"),
    ),
    Mutant(
        "node: complex gradients",
        "autodiff/reverse.py",
        '    return all(not isinstance(t, TensorType) or t.dtype.kind != "complex" for t in types)',
        "    return True",
        "gradients of complex numbers are those of real ones, without the conjugate",
        (f"{_BAD}[a_step-Complex-model, SGD]", f"{_STEP}::test_complex_parameters"),
    ),
    Mutant(
        "node: anomalies",
        "compiler/training/training.py",
        "        if torch.is_anomaly_enabled():",
        "        if False:",
        "anomaly detection cannot name the operator",
        (f"{_MODELS}::test_anomalies_are_named_by_eager",),
    ),
)

STEP = (
    Mutant(
        "step: hooks",
        "_torch/seen/leaves.py",
        'HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")',
        'HOOKS = ("_backward_hooks",)',
        "what a hook does when a gradient was added up is left out",
        (f"{_STEP}::test_a_hook_that_comes_later_is_called",),
    ),
    Mutant(
        "step: gradients that were there",
        "capture/recording/gradients.py",
        "            if old is now:\n                recorder.note(op_info(_ADD_IN_PLACE)",
        "            if old is not now:\n                recorder.note(op_info(_ADD_IN_PLACE)",
        "a gradient that piles up is replaced",
        (f"{_STEP}::test_the_forms_of_a_step",),
    ),
    Mutant(
        "step: a second way back",
        "capture/recording/gradients.py",
        "    if not keeps and inputs is None:\n        recorder.spent.add(nodes)",
        "    if False:\n        recorder.spent.add(nodes)",
        "going back a second time from the loss of a step is no error",
        (f"{_STEP}::test_going_back_twice_is_eagers_error",),
    ),
    Mutant(
        "step: a history from outside",
        "capture/recording/gradients.py",
        "    if _begins_outside(recorder, nodes) or not _is_recordable(",
        "    if not _is_recordable(",
        "gradients of what comes in with a history end at the step",
        (f"{_STEP}::test_a_history_that_begins_outside_of_the_step_is_gone_back_through",),
    ),
    Mutant(
        "step: sparse gradients",
        "capture/recording/gradients.py",
        "    elif any(t.layout is not torch.strided for t in grads):",
        "    elif False:",
        "a sparse gradient is taken for a dense one, and another part says no for another reason",
        (f"{_STEP}::test_why_a_step_is_left_to_eager",),
    ),
)

TRAINING = (*VJPS, *CONTROL, *CUT, *NODE, *STEP)
