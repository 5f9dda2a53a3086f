"""How fast a machine and the links between ranks are, and what a node and a message take by that.

    a node       max(operations of products / product_rate, other operations / element_rate, bytes / memory_rate)
                 + node_us, unless it is computed inside of another node's loops
    a message    latency + bytes / bandwidth
    a collective of n ranks, as a ring: its hops * latency + the bytes that a rank sends / bandwidth
                 all_reduce 2(n-1) hops and 2(n-1)/n of the tensor; the others n-1 hops and (n-1)/n of what there is: of
                 all_gather and reduce_scatter the whole, of broadcast the tensor, of all_to_all a rank's part

Invariant: nothing is measured here; figures come from `inspect.ranks.cluster`, from the command line, or are `TYPICAL`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

from smelt.analysis.cost import cost
from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.ir import Node, TensorType, Value
from smelt.ops.effects import alias_of, effects
from smelt.ops.record import Trait
from smelt.ops.sets import PRODUCTS, is_by_elements, where

_FUNCTION_OPERATIONS = 16
"""Operations of an exponential, a logarithm, a square root: about what a polynomial of such takes."""
_FUNCTIONS = where(Trait.COSTLY) | where(Trait.ACTIVATION)


@record
class Kernels:
    """Of one rank. product_gflops: of products. element_gops: operations by elements, in 1e9 a second. memory_gbps: of
    memory read and written. node_us: what each node takes besides. update_ns: of the optimizer, for one parameter.
    """

    product_gflops: float = 50.0
    element_gops: float = 8.0
    memory_gbps: float = 10.0
    node_us: float = 2.0
    update_ns: float = 4.0

    def seconds(self, node: Node) -> float:
        """What a node takes."""
        spent = cost(node)
        if not spent.nbytes:
            return 0.0
        if _is_product(node):
            by_work = spent.flops / self.product_gflops
        else:
            by_work = spent.flops * (_FUNCTION_OPERATIONS if _is_function(node) else 1) / self.element_gops
        fixed = 0.0 if all(map(is_inside, node.results)) else self.node_us * 1e-6
        return max(by_work, bytes_moved(node) / self.memory_gbps) * 1e-9 + fixed


@record
class Link:
    """latency_us: of a message without content. gbps: bytes of one direction, in 1e9 a second."""

    latency_us: float = 100.0
    gbps: float = 1.5

    def seconds(self, hops: float, nbytes: float) -> float:
        """What it takes to send so many bytes in so many steps one after the other."""
        return hops * self.latency_us * 1e-6 + nbytes / self.gbps * 1e-9


@record
class Figures:
    """links: by axis of the mesh; "" for axes that have none of their own. origin: where they come from, in words."""

    kernels: Kernels = Kernels()
    links: Mapping[str, Link] = field(default_factory=lambda: MappingProxyType({"": Link()}))
    origin: str = "typical of one core, and of gloo between processes of one machine"

    def link(self, axis: str) -> Link:
        """The link along an axis."""
        return self.links.get(axis) or self.links.get("") or Link()

    def with_link(self, axis: str, link: Link) -> Figures:
        """The same with another link."""
        return replace(self, links={**self.links, axis: link})

    def __str__(self) -> str:
        k = self.kernels
        links = "; ".join(
            f"{axis or 'links'} {one.latency_us:.3g} us and {one.gbps:.3g} GB/s" for axis, one in self.links.items()
        )
        return (
            f"products {k.product_gflops:.4g} GFLOP/s, elements {k.element_gops:.3g} Gop/s, memory "
            f"{k.memory_gbps:.3g} GB/s, {k.node_us:.2g} us a node, update {k.update_ns:.2g} ns a parameter; {links} "
            f"({self.origin})"
        )


TYPICAL = Figures()

_SHARE: Mapping[str, tuple[float, float]] = MappingProxyType({
    "all_reduce": (2, 2), "all_gather": (1, 1), "reduce_scatter": (1, 1), "all_to_all": (1, 1), "broadcast": (1, 1),
    "send_rows": (1, 1), "return_rows": (1, 1),
})  # fmt: skip
"""Of each collective of n ranks: hops by n-1, and bytes that a rank sends by (n-1)/n of the payload."""


def hops_and_bytes(kind: str, ranks: int, payload: float) -> tuple[float, float]:
    """Steps one after the other of a ring of so many ranks, and the bytes that each of them sends.

    payload: the tensor's; of all_gather and reduce_scatter the whole's, of all_to_all what a rank has.
    """
    hops, share = _SHARE[kind]
    return hops * (ranks - 1), share * (ranks - 1) / ranks * payload


# --- what of a graph stays in registers


def is_inside(value: Value) -> bool:
    """Whether a value is likely never in memory: what makes it and what uses it are computed in one nest of loops."""
    maker = value.node
    if maker is None or not isinstance(value.type, TensorType) or not value.users:
        return False
    if len(value.users) > _MOST_USERS or alias_of(maker) is not None or not (_is_light(maker) or _is_product(maker)):
        return False
    return all(isinstance(user, Node) and user.parent is maker.parent and _is_light(user) for user in value.users)


_MOST_USERS = 3


def bytes_moved(node: Node) -> int:
    """Bytes that a node reads and writes, without those that stay in registers; none where sizes follow the data."""
    values = [*dict.fromkeys(node.operands()), *node.results]
    sized = [(v, v.type) for v in values if isinstance(v.type, TensorType) and v.type.is_static]
    return sum(type_.nbytes for v, type_ in sized if not is_inside(v))


def _is_light(node: Node) -> bool:
    """Whether loops over elements compute a node together with its neighbours."""
    if node.regions or "." not in node.op:
        return False
    return is_by_elements(node.op) or alias_of(node) is not None or node.op in _LOOPS or "norm" in node.op


_LOOPS = where(Trait.SHRINKS)


def _is_function(node: Node) -> bool:
    return node.op in _FUNCTIONS or effects(node).rng


def _is_product(node: Node) -> bool:
    return node.op in PRODUCTS or "conv" in node.op or "scaled_dot_product" in node.op


# --- as people write them

_UNITS: Mapping[str, float] = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z/]*)\s*", re.IGNORECASE)


def rate_of(text: str, what: str) -> float:
    """A rate in units a second: "300T", "90GB/s", "1.5e12". Raises: SmeltError (S0646)."""
    found = _QUANTITY.fullmatch(text)
    letters = re.sub(r"(flops?)?(/s)?$", "", found[2].lower()).removesuffix("b") if found else "?"
    if found is None or letters not in _UNITS or float(found[1]) <= 0:
        raise SmeltError(
            f"{text!r} is no rate", why=f"{what} is a positive number with a unit", fix="300T, 90GB/s, 1.5e12",
            code="S0646",
        )  # fmt: skip
    return float(found[1]) * _UNITS[letters]


def link_of(text: str) -> tuple[str, Link]:
    """An axis and its link: "tp=5us,200GB/s", or "100us,1.5GB/s" for all axes. Raises: SmeltError (S0646)."""
    axis, equals, rest = text.rpartition("=")
    parts = [part.strip() for part in rest.split(",")]
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(us|ms|ns)", parts[0]) if len(parts) == 2 else None
    if found is None or (equals and not axis.strip().isidentifier()):
        raise SmeltError(
            f"{text!r} is no link", why="a link is a latency and a bandwidth, with the axis that it is for",
            fix="--link tp=5us,200GB/s, or --link 100us,1.5GB/s for all axes", code="S0646",
        )  # fmt: skip
    scale = {"us": 1.0, "ms": 1e3, "ns": 1e-3}[found[2]]
    return axis.strip(), Link(float(found[1]) * scale, rate_of(parts[1], "bandwidth") / 1e9)


def to_dict(figures: Figures) -> dict[str, Any]:
    """As plain data."""
    k = figures.kernels
    kernels = {
        name: getattr(k, name) for name in ("product_gflops", "element_gops", "memory_gbps", "node_us", "update_ns")
    }
    links = {axis: {"latency_us": one.latency_us, "gbps": one.gbps} for axis, one in figures.links.items()}
    return {"kernels": kernels, "links": links, "origin": figures.origin}


def from_dict(data: Mapping[str, Any]) -> Figures:
    """From that. Raises: KeyError, TypeError for other data."""
    return Figures(
        Kernels(**data["kernels"]), {axis: Link(**one) for axis, one in data["links"].items()}, data["origin"]
    )
