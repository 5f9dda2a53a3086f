"""Random whole programs called with other sizes and numbers each time: a program's text rewritten.

The literal sizes of a program (`torch.zeros([3, 4])`) become `H` and `W`, read from its first argument, and its five
calls bring tensors of five sizes: mostly `W == H + 1`, which the programs' slices keep. Where a program has a buffer or
a layer of four columns, `W` stays 4.
"""

from __future__ import annotations

import ast
import re
from random import Random

_NAMES = {3: "H", 4: "W"}
_KINDS = {
    "x": ("float32", "HW"), "y": ("float32", "W"), "k": ("int64", "W"), "s": ("float32", ""),
    "d": ("float64", "WH"), "b": ("bool", "W"), "j": ("int64", ""),
}  # fmt: skip
_HEIGHTS = (3, 3, 4, 5, 7, 12, 2, 1, 0)


class _Sizes(ast.NodeTransformer):
    """Literal sizes by name. Indices and remainders stay: they are in range for most sizes."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in ("zeros", "ones", "full", "rand", "randint", "expand", "reshape", "layer_norm"):
            node.args = [self._named(arg, top=name in ("expand", "reshape", "rand")) for arg in node.args]
        return node

    def visit_Slice(self, node: ast.Slice) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.upper, ast.Constant) and node.upper.value == 3:
            node.upper = ast.Name("H", ast.Load())
        return node

    def _named(self, node: ast.expr, *, top: bool = False) -> ast.expr:
        if isinstance(node, ast.List | ast.Tuple):
            node.elts = [self._named(item, top=True) for item in node.elts]
        elif top and isinstance(node, ast.Constant) and node.value in _NAMES:
            return ast.Name(_NAMES[node.value], ast.Load())
        return node


def sized(text: str, seed: int) -> str:
    """The program for many sizes, and calls that bring them."""
    rng = Random(seed)
    tree = ast.parse(text)
    program = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in ("program", "forward"))
    _Sizes().visit(program)
    program.body.insert(0, ast.parse("H, W = x.shape").body[0])
    names = [a.arg for a in program.args.args if a.arg != "self"]
    is_fixed = re.search(r"\.(buffer|linear)\b", ast.unparse(program)) is not None
    calls = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "calls")
    rows = []
    heights = rng.sample(_HEIGHTS, 5)
    heights[0] = max(heights[0], rng.choice((2, 2, 2, 1, 0)))
    for height in heights:
        width = 4 if is_fixed else height + 1 if rng.random() < 0.85 else rng.choice((1, 4, 6))
        rows.append(f"({', '.join(_argument(rng, name, height, width) for name in names)},)")
    calls.body = list(ast.parse("def calls():\n    return [" + ", ".join(rows) + "]").body[0].body)  # type: ignore[attr-defined]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _argument(rng: Random, name: str, height: int, width: int) -> str:
    match name:
        case "n":
            return str(rng.choice((rng.randint(-3, 9), rng.randint(2, 5))))
        case "f":
            return str(rng.choice((rng.randint(-8, 8) / 4, rng.randint(-8, 8) / 4, -0.0, 1)))
        case "g":
            return str(rng.random() < 0.5)
        case "items":
            return f"[{argument(rng, 'float32', [width])}, {argument(rng, 'float32', [width])}]"
    dtype, dims = _KINDS[name]
    return argument(rng, dtype, [height if dim == "H" else width for dim in dims])


def argument(rng: Random, dtype: str, shape: list[int]) -> str:
    """The text of a tensor: multiples of 1/4; not always laid out as torch would."""
    count = 1
    for size in shape:
        count *= size
    if dtype == "bool":
        flat = [rng.random() < 0.5 for _ in range(count)]
    else:
        flat = [rng.randint(-16, 16) if dtype != "int64" else rng.randint(-3, 4) for _ in range(count)]
    scale = " / 4" if dtype.startswith("float") else ""
    kind = "float32" if scale and dtype != "float64" else dtype
    text = f"(torch.tensor({flat}, dtype=torch.{kind}){scale})"
    roll = rng.random()
    if len(shape) == 2 and roll < 0.15:
        return f"{text}.reshape({shape[::-1]}).t()"
    if shape and roll < 0.3:
        return f"{text}.reshape({shape}).repeat_interleave(2, -1)[..., ::2]"
    return f"{text}.reshape({shape})"
