"""Mini-Smelt: record, convert, lower and run, rebuilt in one file that a person can read in ten minutes.

    python examples/mini_smelt.py

It follows the four steps of `docs/mini_smelt.md`, in their order. It leaves out what makes Smelt long: mutation, views,
sizes that change, other dtypes, memory planning, threads. Run it: it prints what each step makes of a small program.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any

import llvmlite.binding as llvm
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# --- the graph: values, nodes, regions --------------------------------------------------------------------------------


@dataclass(eq=False)
class Value:
    """What one node computes: a name, a dtype and a shape. `constant` holds the tensor of a weight."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    constant: Tensor | None = None


@dataclass(eq=False)
class Node:
    """One operation. `if` and `while` have regions: graphs of their own, that may use the values around them."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Value, ...]
    regions: tuple[Graph, ...] = ()

    def uses(self) -> Iterator[Value]:
        """The values that it reads, within its regions, too."""
        yield from (a for a in tree_leaves((self.args, self.kwargs)) if isinstance(a, Value))
        for region in self.regions:
            for node in region.nodes:
                yield from node.uses()
            yield from region.outputs


@dataclass(eq=False)
class Graph:
    """Inputs, nodes in the order of the run, outputs."""

    inputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def text(self, indent: str = "  ") -> str:
        """The graph as a person reads it."""
        lines = []
        for node in self.nodes:
            left = ", ".join(f"%{v.name}: {str(v.dtype)[6:]}{list(v.shape)}" for v in node.results)
            args = ", ".join(f"%{a.name}" if isinstance(a, Value) else str(a) for a in node.args)
            lines.append(f"{indent}{left}{' = ' if left else ''}{node.op}({args})")
            lines += [f"{indent}{{\n{region.text(indent + '  ')}\n{indent}}}" for region in node.regions]
        ends = ", ".join(f"%{v.name}" for v in self.outputs)
        return "\n".join([*lines, f"{indent}return {ends}"])


# --- 1. record: run the program, and note each operation as the dispatcher sees it -----------------------------------


class Recorder(TorchDispatchMode):
    """Notes what runs while it is on. Where Python reads a tensor's value, the graph gets an `expect`."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.names, self.paused = count(), False
        self.known: dict[int, tuple[Value, Tensor]] = {}  # by identity; holding the tensor keeps its identity its own
        self.graph = Graph(inputs=[self.add(t) for t in inputs])

    def add(self, tensor: Tensor, constant: Tensor | None = None) -> Value:
        """A new value for a tensor."""
        name = f"{'' if constant is None else 'w'}{next(self.names)}"
        value = Value(name, tensor.dtype, tuple(tensor.shape), constant)
        self.known[id(tensor)] = value, tensor
        return value

    def of(self, x: Any) -> Any:
        """The value of a tensor (one that nobody made here is a weight); anything else is itself."""
        if not isinstance(x, Tensor):
            return x
        return self.known[id(x)][0] if id(x) in self.known else self.add(x, constant=x)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        noted = tree_map(self.of, args), tree_map(self.of, kwargs)
        if any(isinstance(a, Tensor) and a.is_meta for a in tree_leaves((args, kwargs))):  # weights meet fake tensors
            args, kwargs = tree_map(lambda a: a.to("meta") if isinstance(a, Tensor) else a, (args, kwargs))
        result = func(*args, **kwargs)
        if str(func) == "aten._local_scalar_dense.default":
            self.graph.nodes.append(Node("expect", (*noted[0], result), {}, ()))
        else:
            made = tuple(self.add(r) for r in tree_leaves(result) if isinstance(r, Tensor))
            self.graph.nodes.append(Node(str(func), *noted, made))
        return result

    def region(self, function: Callable[..., Any], state: Sequence[Tensor], inputs: Sequence[Tensor] = ()) -> Graph:
        """What a function does to a state, noted in a graph of its own."""
        outside, self.graph = self.graph, Graph(inputs=[self.add(t) for t in inputs])
        results = function(*state)
        region, self.graph = self.graph, outside
        region.outputs = [self.of(t) for t in ([results] if isinstance(results, Tensor) else results)]
        return region

    def node(self, op: str, args: Sequence[Tensor], like: Sequence[Tensor], *regions: Graph) -> list[Tensor]:
        """Note a node with regions; its results are new fake tensors."""
        made = self.fresh(like)
        results = tuple(self.add(t) for t in made)
        self.graph.nodes.append(Node(op, tuple(map(self.of, args)), {}, results, regions))
        return made

    def fresh(self, like: Sequence[Any]) -> list[Tensor]:
        """Fake tensors: memory of their own, without data."""
        self.paused = True
        made = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in like]
        self.paused = False
        return made


# --- 2. convert: rewrite `if` and `while` so that both arms are noted, and let CPython run the result -----------------


class Convert(ast.NodeTransformer):
    """`if t: A else: B` becomes `names = __if(t, then, else, names)`; `while` likewise. All else stays Python."""

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        """An `if` whose arms assign names."""
        self.generic_visit(node)
        names = _assigned([*node.body, *node.orelse])
        arms = {"__then": [*node.body, _give(names)], "__else": [*node.orelse, _give(names)]}
        return _calling(f"__if({ast.unparse(node.test)}, __then, __else", arms, names)

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        """A `while` whose body assigns names."""
        self.generic_visit(node)
        names = _assigned(node.body)
        functions = {"__test": [ast.Return(node.test)], "__body": [*node.body, _give(names)]}
        return _calling("__while(__test, __body", functions, names)


def _give(names: list[str]) -> ast.stmt:
    return ast.parse(f"return ({', '.join(names)},)").body[0]


def _calling(call: str, functions: dict[str, list[ast.stmt]], names: list[str]) -> list[ast.stmt]:
    params = ", ".join(names)
    text = "".join(f"def {name}({params}): pass\n" for name in functions)
    tree = ast.parse(f"{text}({params},) = {call}, *map(locals().get, {names}))")
    for function, body in zip(tree.body, functions.values(), strict=False):
        function.body = body  # type: ignore[attr-defined]
    return tree.body


def _assigned(body: list[ast.stmt]) -> list[str]:
    stores = (n for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return sorted({n.id for n in stores})


def convert(f: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """The function with its control flow rewritten, under its own names and lines."""
    tree = Convert().visit(ast.parse(textwrap.dedent(inspect.getsource(f))))
    tree.body[0].decorator_list = []
    scope = {**f.__globals__, "__if": _stage_if(recorder), "__while": _stage_while(recorder)}
    exec(compile(ast.fix_missing_locations(tree), inspect.getfile(f), "exec"), scope)
    return scope[f.__name__]  # type: ignore[no-any-return]


def _stage_if(r: Recorder) -> Callable[..., Any]:
    def stage(test: Any, then: Any, orelse: Any, *state: Any) -> Any:
        if not isinstance(test, Tensor):
            return then(*state) if test else orelse(*state)  # a test of Python's own values: CPython decides
        arms = [r.region(arm, state) for arm in (then, orelse)]
        return r.node("if", [test], arms[0].outputs, *arms)

    return stage


def _stage_while(r: Recorder) -> Callable[..., Any]:
    def stage(test: Any, body: Any, *state: Any) -> Any:
        carried = [r.fresh(state), r.fresh(state)]
        regions = (r.region(f, c, inputs=c) for f, c in zip((test, body), carried, strict=True))
        return r.node("while", state, state, *regions)

    return stage


def capture(f: Callable[..., Any], args: Sequence[Tensor]) -> Graph:
    """Record a run; where Python read a value, convert the program and run it once more on fake tensors."""
    recorder = Recorder(args)
    with recorder:
        result = f(*args)
    if any(node.op == "expect" for node in recorder.graph.nodes):
        fake = [a.to("meta") for a in args]
        recorder = Recorder(fake)
        converted = convert(f, recorder)
        with recorder:
            result = converted(*fake)
    recorder.graph.outputs = [recorder.of(result)]
    return recorder.graph


# --- 3. lower: neighbours that work element by element become one loop, written as LLVM text --------------------------

LOOPS = {
    "aten.add.Tensor": "fadd float {0}, {1}",
    "aten.sub.Tensor": "fsub float {0}, {1}",
    "aten.mul.Tensor": "fmul float {0}, {1}",
    "aten.div.Tensor": "fdiv float {0}, {1}",
    "aten.neg.default": "fneg float {0}",
    "aten.relu.default": "call float @llvm.maximum.f32(float {0}, float 0.0)",
}


def _is_pointwise(node: Node) -> bool:
    types = {(v.dtype, v.shape) for v in (*node.uses(), *node.results)}
    return node.op in LOOPS and not node.kwargs and len(types) == 1 and node.results[0].dtype == torch.float32


def kernel(group: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """The LLVM text of a loop that computes a group: `kernel(addresses, n)`, outputs first."""
    body, names = [], {}
    for k in range(len(outputs) + len(inputs)):
        body.append(f"%q{k} = getelementptr ptr, ptr %addresses, i64 {k}\n  %p{k} = load ptr, ptr %q{k}")
    body.append("br label %loop\nloop:\n  %i = phi i64 [ 0, %entry ], [ %next, %loop ]")
    for k, value in enumerate(inputs, len(outputs)):
        body.append(f"%e{k} = getelementptr float, ptr %p{k}, i64 %i\n  %x{value.name} = load float, ptr %e{k}")
        names[value] = f"%x{value.name}"
    for node in group:
        operands = [names[a] if isinstance(a, Value) else f"0x{_bits(a):016X}" for a in node.args]
        names[node.results[0]] = f"%x{node.results[0].name}"
        body.append(f"{names[node.results[0]]} = {LOOPS[node.op].format(*operands)}")
    for k, value in enumerate(outputs):
        body.append(f"%e{k} = getelementptr float, ptr %p{k}, i64 %i\n  store float {names[value]}, ptr %e{k}")
    body.append("%next = add i64 %i, 1\n  %more = icmp slt i64 %next, %n\n  br i1 %more, label %loop, label %done")
    lines = "\n  ".join(body)
    head = "declare float @llvm.maximum.f32(float, float)\n\ndefine void @kernel(ptr %addresses, i64 %n) {\nentry:\n"
    return f"{head}  {lines}\ndone:\n  ret void\n}}\n"


def _bits(number: float) -> int:
    return int(torch.tensor(number).double().view(torch.int64)) & (2**64 - 1)  # as LLVM writes a float


Frame = dict[Value, Tensor]
Instruction = Callable[[Frame], None]


def lower(graph: Graph, show: Callable[[str], None] = lambda text: None) -> list[Instruction]:
    """The plan: loops, library calls, branches, over one frame of values."""
    plan: list[Instruction] = []
    for key, nodes in groupby(graph.nodes, lambda n: n.results[0].shape if _is_pointwise(n) else n):
        if isinstance(key, Node):
            plan.append({"if": _branch, "while": _repeat}.get(key.op, _library)(key, show))
        else:
            plan.append(_loop(list(nodes), graph, show))
    return plan


def _loop(group: Sequence[Node], graph: Graph, show: Callable[[str], None]) -> Instruction:
    made = {node.results[0] for node in group}
    later = {v for node in graph.nodes if node not in group for v in node.uses()} | set(graph.outputs)
    inputs = list(dict.fromkeys(v for node in group for v in node.uses() if v not in made))
    outputs = [v for node in group for v in node.results if v in later]
    text = kernel(group, inputs, outputs)
    show(f"{len(group)} operations in one loop, {len(inputs)} arrays in, {len(outputs)} out:\n{text}")
    code = Code(text)

    def run(frame: Frame) -> None:
        arrays = [torch.empty(v.shape) for v in outputs] + [_get(frame, v).contiguous() for v in inputs]
        code.run((ctypes.c_void_p * len(arrays))(*(a.data_ptr() for a in arrays)), arrays[0].numel())
        frame.update(zip(outputs, arrays, strict=False))

    return run


def _library(node: Node, show: Callable[[str], None]) -> Instruction:
    namespace, name, overload = node.op.split(".")
    function = getattr(getattr(getattr(torch.ops, namespace), name), overload)

    def run(frame: Frame) -> None:
        args, kwargs = tree_map(lambda a: _get(frame, a) if isinstance(a, Value) else a, (node.args, node.kwargs))
        frame.update(zip(node.results, tree_leaves(function(*args, **kwargs)), strict=True))

    return run


def _branch(node: Node, show: Callable[[str], None]) -> Instruction:
    arms = [lower(region, show) for region in node.regions]

    def run(frame: Frame) -> None:
        chosen = 0 if _get(frame, node.args[0]) else 1
        execute(arms[chosen], frame)
        frame.update((v, _get(frame, w)) for v, w in zip(node.results, node.regions[chosen].outputs, strict=True))

    return run


def _repeat(node: Node, show: Callable[[str], None]) -> Instruction:
    (test, body), (test_plan, done) = (lower(region, show) for region in node.regions), node.regions

    def run(frame: Frame) -> None:
        carried = [_get(frame, v) for v in node.args]
        while True:
            frame.update(zip([*test_plan.inputs, *done.inputs, *node.results], carried * 3, strict=True))
            execute(test, frame)
            if not _get(frame, test_plan.outputs[0]):
                break
            execute(body, frame)
            carried = [_get(frame, v) for v in done.outputs]

    return run


# --- 4. run: machine code in memory, a plan that is walked, a guard in front ------------------------------------------


class Code:
    """Machine code of a kernel's text, made by LLVM in this process: no compiler is started."""

    def __init__(self, text: str) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        module = llvm.parse_assembly(text)
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        jit = llvm.create_lljit_compiler(machine)
        self._owner = llvm.JITLibraryBuilder().add_ir(module).export_symbol("kernel").link(jit, "kernel"), jit
        self.run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self._owner[0]["kernel"])


def _get(frame: Frame, value: Value) -> Tensor:
    return frame[value] if value.constant is None else value.constant


def execute(plan: Sequence[Instruction], frame: Frame) -> None:
    """Walk a plan. Smelt does this in one native function; the idea is this loop."""
    for instruction in plan:
        instruction(frame)


def mini_compile(f: Callable[..., Any]) -> Callable[..., Tensor]:
    """A function that captures `f` once for each combination of shapes and dtypes (the guard), then runs its plan."""
    known: dict[Any, tuple[Graph, list[Instruction]]] = {}

    def call(*args: Tensor) -> Tensor:
        key = tuple((tuple(a.shape), a.dtype) for a in args)
        if key not in known:
            graph = capture(f, args)
            known[key] = graph, lower(graph)
        graph, plan = known[key]
        frame: Frame = dict(zip(graph.inputs, args, strict=True))
        execute(plan, frame)
        return _get(frame, graph.outputs[0])

    return call


# --- try it -----------------------------------------------------------------------------------------------------------

weight = torch.full((4, 4), 0.25)


def program(x: Tensor) -> Tensor:
    """A product, a few operations element by element, a branch and a loop on data."""
    y = (x @ weight) * 2 + x
    if y.sum() > 0:
        y = torch.relu(y - 1)
    else:
        y = -y
    while y.max() > 1:
        y = y / 2
    return y


if __name__ == "__main__":
    x = torch.randn(4, 4)
    recorder = Recorder([x])
    with recorder:
        recorder.graph.outputs = [recorder.of(program(x))]
    print("1. One run as recorded; an `expect` stands where Python read a value:\n" + recorder.graph.text())
    print("\n2. The converted program, run on fake tensors: one graph of all paths:\n" + capture(program, [x]).text())
    print("\n3. Its loops as LLVM text:\n")
    lower(capture(program, [x]), print)
    compiled = mini_compile(program)
    same = [torch.equal(compiled(x), program(x)) for x in (torch.randn(4, 4) * k for k in range(-3, 30))]
    print(f"4. Equal to eager on {sum(same)} of {len(same)} inputs.")
    assert all(same)
