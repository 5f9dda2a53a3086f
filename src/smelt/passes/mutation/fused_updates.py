"""Optimizers that torch has as one operator (`fused=True`), in the operators that each tensor needs.

    _fused_sgd_([%p], [%g], [], lr=0.1, ...)      ==>      add_ %p %g alpha=-0.1

The kernels that come of these do what torch's one operator does: all tensors of a parameter in one pass, in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.ir import FLOAT, Arg, Node, Value
from smelt.ops.lowering import GraphEmitter
from smelt.ops.registry import arguments_of, schema_of
from smelt.rewrite import Rewriter

_NAMES = ("aten._fused_adam_.default", "aten._fused_adamw_.default", "aten._fused_sgd_.default")


def write_updates_out(rewriter: Rewriter, emit: GraphEmitter) -> None:
    """Write out such operators; those that scale gradients, or look for infinite ones, stay."""
    for node in list(rewriter.graph.walk()):
        schema = schema_of(node.op) if node.op in _NAMES else None
        if schema is None:
            continue
        call = arguments_of(schema, node.args, node.kwargs)
        lists = {name: arg for name, arg in call.items() if isinstance(arg, tuple)}
        of_tensors = all(isinstance(one, Value) for arg in lists.values() for one in arg)
        if not of_tensors or call["grad_scale"] is not None or call["found_inf"] is not None:
            continue
        with rewriter.builder.at(node):
            for i in range(len(lists["self"])):
                own = {name: arg[i] if i < len(arg) else None for name, arg in lists.items()}
                _Update(rewriter, emit, {**call, **own}).write(node)
        rewriter.erase(node)


class _Update:
    """One parameter's update. given: the operator's arguments, of each list this parameter's tensor."""

    def __init__(self, rewriter: Rewriter, emit: GraphEmitter, given: Mapping[str, Any]) -> None:
        self.rewriter, self.emit, self.given = rewriter, emit, given

    def write(self, node: Node) -> None:
        grad = self.given["grads"]
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
        step = self._added("aten.item.default", given["state_steps"])
        first, second = (
            self._number("sub", 1.0, self._number("pow", given[name], step)) for name in ("beta1", "beta2")
        )
        largest = square
        if given["amsgrad"]:
            largest = given["max_exp_avg_sqs"]
            self._call("copy_.default", largest, self.emit.call("aten.maximum.default", largest, square))
        root = self.emit.call("aten.sqrt.default", largest)
        scaled = self.emit.call("aten.div.Tensor", root, self._added("py.call", "math.sqrt", second))
        below = self.emit.call("aten.add.Tensor", scaled, given["eps"])
        size = self._negated(self._number("truediv", lr, first))
        self._call("addcdiv_.default", parameter, average, below, value=size)

    def _decayed(self, grad: Value) -> Value:
        decay = self.given["weight_decay"]
        return grad if decay == 0 else self.emit.call("aten.add.Tensor", grad, self.given["self"], alpha=decay)

    def _call(self, name: str, *args: Arg, **kwargs: Arg) -> None:
        self.emit.node(f"aten.{name}", args, kwargs)

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
