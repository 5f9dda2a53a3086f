"""Optimizers that torch has as one operator (`fused=True`), in the operators that each tensor needs.

    _fused_sgd_([%p], [%g], [], lr=0.1, ...)      ==>      add_ %p %g alpha=-0.1
    _fused_sgd_(..., grad_scale=%s, found_inf=%i) ==>      %bad = eq %i 1; copy_ %g where(%bad, %g, div(%g, %s));
                                                           copy_ %p where(%bad, %p, add(%p, %g, alpha=-0.1))

The kernels that come of these do what torch's one operator does: all tensors of a parameter in one pass, in place. A
count of steps that is on a GPU stays there, as does whether a gradient overflowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.ir import FLOAT, Arg, DType, Node, TensorType, Value
from smelt.ops.lowering import GraphEmitter
from smelt.ops.registry import arguments_of, schema_of
from smelt.rewrite import Rewriter

_NAMES = ("aten._fused_adam_.default", "aten._fused_adamw_.default", "aten._fused_sgd_.default")


def write_updates_out(rewriter: Rewriter, emit: GraphEmitter) -> None:
    """Write out such operators."""
    for node in list(rewriter.graph.walk()):
        schema = schema_of(node.op) if node.op in _NAMES else None
        if schema is None:
            continue
        call = arguments_of(schema, node.args, node.kwargs)
        lists = {name: arg for name, arg in call.items() if isinstance(arg, tuple)}
        if not all(isinstance(one, Value) for arg in lists.values() for one in arg):
            continue
        if "sgd" in node.op and any(map(_is_half_on_cpu, lists["self"])):
            # What torch's kernel for CPUs makes of f16 and bf16 is no formula's value; so it is left to that.
            continue
        with rewriter.builder.at(node):
            if call["found_inf"] is not None:
                call["found_inf"] = emit.call("aten.eq.Scalar", call["found_inf"], 1)
            for i in range(len(lists["self"])):
                own = {name: arg[i] if i < len(arg) else None for name, arg in lists.items()}
                _Update(rewriter, emit, {**call, **own}).write(node)
        rewriter.erase(node)


class _Update:
    """One parameter's update. given: the operator's arguments, of each list this parameter's tensor; of `found_inf`
    whether it says that nothing is to be done.
    """

    def __init__(self, rewriter: Rewriter, emit: GraphEmitter, given: Mapping[str, Any]) -> None:
        self.rewriter, self.emit, self.given = rewriter, emit, given

    def write(self, node: Node) -> None:
        """Write the update out; of f16 and bf16 in f32, rounded once at its end, as torch's kernel does."""
        tensors = {name: value for name, value in self.given.items() if name in _WIDENED and _is_half(value)}
        wide = {
            name: self.emit.call("aten._to_copy.default", value, dtype=DType.F32) for name, value in tensors.items()
        }
        self.given = {**self.given, **wide}
        self._write(node)
        for name, value in tensors.items():
            if name != "grads" or self.given["grad_scale"] is not None:
                self.emit.node("aten.copy_.default", (value, wide[name]))

    def _write(self, node: Node) -> None:
        grad = self.given["grads"]
        if self.given["grad_scale"] is not None:
            grad = self._call("div_.Tensor", grad, self.given["grad_scale"])
        if self.given["maximize"]:
            grad = self.emit.call("aten.neg.default", grad)
        if "sgd" in node.op:
            self._sgd(grad)
        else:
            self._adam(grad, is_decoupled="adamw" in node.op)

    def _sgd(self, grad: Value) -> None:
        given = self.given
        parameter, buffer, momentum = given["self"], given["momentum_buffer_list"], given["momentum"]
        grad = self._decayed(grad)
        if buffer is not None and momentum != 0:
            if given["is_first_step"]:
                self._call("copy_.default", buffer, grad)
            else:
                self._call("mul_.Tensor", buffer, momentum)
                self._call("add_.Tensor", buffer, grad, alpha=self._number("sub", 1.0, given["dampening"]))
            grad = self.emit.call("aten.add.Tensor", grad, buffer, alpha=momentum) if given["nesterov"] else buffer
        self._call("add_.Tensor", parameter, grad, alpha=self._negated(given["lr"]))

    def _adam(self, grad: Value, *, is_decoupled: bool) -> None:
        given = self.given
        parameter, average, square, lr = given["self"], given["exp_avgs"], given["exp_avg_sqs"], given["lr"]
        if not is_decoupled:
            grad = self._decayed(grad)
        elif given["weight_decay"] != 0:
            lost = self._number("mul", lr, given["weight_decay"])
            self._call("mul_.Tensor", parameter, self._number("sub", 1.0, lost))
        self._call("lerp_.Scalar", average, grad, self._number("sub", 1.0, given["beta1"]))
        self._call("mul_.Tensor", square, given["beta2"])
        self._call("addcmul_.default", square, grad, grad, value=self._number("sub", 1.0, given["beta2"]))
        largest = square
        if given["amsgrad"]:
            largest = given["max_exp_avg_sqs"]
            self._call("copy_.default", largest, self.emit.call("aten.maximum.default", largest, square))
        root = self.emit.call("aten.sqrt.default", largest)
        if _is_on_gpu(given["state_steps"]):
            self._stepped_on_gpu(parameter, average, root, lr)
            return
        step = self._added("aten.item.default", given["state_steps"])
        first, second = (
            self._number("sub", 1.0, self._number("pow", given[name], step)) for name in ("beta1", "beta2")
        )
        scaled = self.emit.call("aten.div.Tensor", root, self._added("py.call", "math.sqrt", second))
        below = self.emit.call("aten.add.Tensor", scaled, given["eps"])
        size = self._negated(self._number("truediv", lr, first))
        self._call("addcdiv_.default", parameter, average, below, value=size)

    def _stepped_on_gpu(self, parameter: Value, average: Value, root: Value, lr: Arg) -> None:
        """The last line of Adam where the host does not know the step: its corrections are tensors of one f64."""
        given, call = self.given, self.emit.call
        step = call("aten._to_copy.default", given["state_steps"], dtype=DType.F64)
        first, second = (
            call("aten.rsub.Scalar", call("aten.pow.Scalar", given[name], step), 1.0) for name in ("beta1", "beta2")
        )
        below = call("aten.add.Tensor", call("aten.div.Tensor", root, call("aten.sqrt.default", second)), given["eps"])
        size = call("aten.mul.Tensor", call("aten.reciprocal.default", first), lr)
        self._call("sub_.Tensor", parameter, call("aten.div.Tensor", call("aten.mul.Tensor", average, size), below))

    def _decayed(self, grad: Value) -> Value:
        decay = self.given["weight_decay"]
        return grad if decay == 0 else self.emit.call("aten.add.Tensor", grad, self.given["self"], alpha=decay)

    def _call(self, name: str, target: Value, *args: Arg, **kwargs: Arg) -> Value:
        """Write to a tensor, unless a gradient overflowed; the tensor."""
        is_bad = self.given["found_inf"]
        if is_bad is None:
            return self.emit.node(f"aten.{name}", (target, *args), kwargs).result
        new = (
            args[0]
            if name == "copy_.default"
            else self.emit.call(f"aten.{name.replace('_.', '.')}", target, *args, **kwargs)
        )
        kept = self.emit.call("aten.where.self", is_bad, target, new)
        return self.emit.node("aten.copy_.default", (target, kept)).result

    def _negated(self, number: Arg) -> Arg:
        return self._added("py.neg", number) if isinstance(number, Value) else self._number("sub", 0.0, number)

    def _number(self, name: str, a: Arg, b: Arg) -> Arg:
        if isinstance(a, float) and isinstance(b, float):
            return a - b if name == "sub" else a * b
        return self._added(f"py.{name}", a, b)

    def _added(self, op: str, *args: Arg) -> Value:
        node = self.rewriter.builder.add(op, args, [FLOAT])
        self.rewriter.adopt(node)
        return node.result


_WIDENED = ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "momentum_buffer_list")


def _is_half(value: object) -> bool:
    return isinstance(value, Value) and isinstance(value.type, TensorType) and value.type.dtype.is_half


def _is_half_on_cpu(value: object) -> bool:
    return isinstance(value, Value) and _is_half(value) and not _is_on_gpu(value)


def _is_on_gpu(tensor: Value) -> bool:
    return isinstance(tensor.type, TensorType) and tensor.type.device.startswith("cuda")
