"""Branches and loops of the graph as blocks of the plan: their regions are fused and lowered like any code.

    %r = if %c { ...; yield %a } else { ...; yield %b }
        ==>   Branch(c); ...; r = a; Otherwise(); ...; r = b; End()

    %r = while with (%h = %init) { ...; yield %go } do (%h) { ...; yield %next }
        ==>   h = init; Loop(); ...; Exit(go); ...; h = next; End()

Invariant: what a block carries or results in has one place, for all turns and both arms; nothing is allocated in a
loop. Values of other regions are read where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence

from smelt.codegen.fusion.rules.indexed_writes import writes_parts
from smelt.codegen.lower.builder import Place, Storage
from smelt.codegen.lower.context import Context, tensor_type
from smelt.codegen.lower.memory.copies import copy_into
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.memory.overwriting import origin
from smelt.codegen.lower.python.appends import grown_from, is_append
from smelt.codegen.lower.python.growing import Growing
from smelt.codegen.lower.python.lists import begin
from smelt.codegen.lower.python.numbers import element_type, operand, same, truth
from smelt.codegen.lower.python.plain import is_number, is_plain_type, kind_of
from smelt.codegen.lower.python.python_nodes import move
from smelt.codegen.lower.python.python_parts import python_us
from smelt.codegen.lower.python.sized_runs import SizedRuns
from smelt.ir import BOOL, Arg, ListType, Node, Region, TensorType, Type, Value, values_in
from smelt.ir.sizes import is_symbolic
from smelt.runtime.encoding.table import Arith
from smelt.runtime.plan import Blit, Branch, End, Exit, Loop, Otherwise, Scalar, Use

CALL_US = 6.0  # a call of Python from native code, tensors made of slots included
APPEND_US = 2.5  # one that puts a tensor into a list
_INNER_TURNS = 4  # of a loop in another one, where nothing tells more

Body = Callable[[Region], None]
"""Lowers the nodes of a region."""


def is_native(ctx: Context, node: Node) -> bool:
    """Whether a branch or a loop can be a block: plain tensors, numbers and lists with a buffer go in and out."""
    growing = ctx.growing.growing.get(node, {})
    match node.op:
        case "if":
            return _is_condition(node.args[0]) and _is_worth_it(ctx, node)
        case "for":
            has_step = type(node.args[2]) is int and node.args[2] != 0
            return _is_counted(node) and has_step and _carries(node, node.args[3:], growing) and _is_worth_it(ctx, node)
        case "while":
            return _is_condition(node.regions[0].yields[0]) and _carries(node, node.args) and _is_worth_it(ctx, node)
    return False


def _is_counted(node: Node) -> bool:
    """Whether the bounds of a loop are numbers; those that are sizes, where it carries no objects: a list that grows
    there has no buffer, and Python alone is faster than calls of it.
    """
    if any(map(is_symbolic, node.args[:3])) and any(_is_object(result.type) for result in node.results):
        return False
    return all(type(a) is int or is_symbolic(a) or isinstance(a, Value) for a in node.args[:3])


def _is_object(type_: Type) -> bool:
    """Whether a value goes from turn to turn as an object of Python: anything but a number and a plain tensor."""
    return kind_of(type_) == "object" and not (isinstance(type_, TensorType) and is_plain_type(type_))


def _is_condition(arg: Arg) -> bool:
    if isinstance(arg, Value):
        return arg.type == BOOL or element_type(arg.type) is not None
    return isinstance(arg, bool)


def _carries(node: Node, first: Sequence[Arg], apart: Container[int] = ()) -> bool:
    """Whether what goes in and comes back is what the loop results in, `apart` from lists."""
    rows = zip(first, node.regions[-1].yields, node.results, strict=True)
    return all(_fits(a, r.type) and _fits(b, r.type) for k, (a, b, r) in enumerate(rows) if k not in apart)


def _fits(arg: Arg, type_: Type) -> bool:
    if _is_object(type_):
        return True
    if isinstance(arg, Value):
        return arg.type == type_ or (isinstance(type_, TensorType) and _alike(arg.type, type_))
    return is_number(type_) and isinstance(arg, (bool, int, float))


def _alike(a: Type, b: TensorType) -> bool:
    return isinstance(a, TensorType) and is_plain_type(a) and (a.dtype, a.sizes) == (b.dtype, b.sizes)


def _is_worth_it(ctx: Context, node: Node) -> bool:
    """Whether a turn costs less with calls of Python from native code than one that Python goes through."""
    called = sum(turns * _calls_us(ctx, region) for region, turns in _regions(node))
    whole = sum(turns * python_us(region) for region, turns in _regions(node))
    if node.op == "if":
        # Gone through by Python it is a call itself; here, objects are put where they are wanted by one.
        whole += CALL_US
        objects = [k for k, result in enumerate(node.results) if _is_object(result.type)]
        called += 0.0 if all(grown_from(node, k) is not None for k in objects) else CALL_US
    return called <= whole


def _regions(node: Node, turns: int = 1) -> Iterator[tuple[Region, int]]:
    """Each region of a node, and how often it is taken to run in a turn."""
    for region in node.regions:
        yield region, turns
        for inner in region:
            yield from _regions(inner, turns * (1 if inner.op == "if" else _INNER_TURNS))


def _calls_us(ctx: Context, region: Region) -> float:
    """What the calls of Python for a region's own nodes take."""
    runs = SizedRuns(region, ctx.growing).at.values()
    return sum(len(run) * APPEND_US if all(map(is_append, run)) else CALL_US + python_us(run) for run in runs)


def lower_if(ctx: Context, node: Node, body: Body) -> None:
    """Both arms write each result into one place."""
    test = _tested(ctx, truth(ctx, node.args[0]))
    kept = {k: place for k in range(len(node.results)) if (place := _kept(ctx, node, k, origin(node, k))) is not None}
    places = [kept.get(k) or _grown(ctx, node, k) or _place(ctx, r) for k, r in enumerate(node.results)]
    # What lies there already must not be written over before all that reads it.
    order = sorted(range(len(places)), key=lambda k: k in kept)
    ctx.builder.emit(Branch(test))
    for region in node.regions:
        with ctx.block(region):
            _aim(ctx, region, [None if k in kept else place for k, place in enumerate(places)])
            body(region)
            ctx.enter(node)
            _store_all(ctx, [region.yields[k] for k in order], [places[k] for k in order])
        ctx.builder.emit(Otherwise() if region is node.regions[0] else End())
    ctx.note(node, "block")


def _grown(ctx: Context, node: Node, k: int) -> Place | None:
    """The place of a list that arms put something into, where nobody sees what it was before."""
    if not isinstance(node.results[k].type, ListType) or (before := grown_from(node, k)) is None:
        return None
    held = ctx.number(before)
    place = Place(held, held.base)
    ctx.bind(node.results[k], place)
    return place


def lower_for(ctx: Context, node: Node, body: Body) -> None:
    """A counted loop; its bounds are known when it begins."""
    start, stop, step = (operand(ctx, arg) for arg in node.args[:3])
    assert isinstance(step, int)
    (region,) = node.regions
    index = ctx.builder.number("int")
    ctx.builder.emit(Scalar(Arith.COPY, index.slot, (start,), same))
    growing = ctx.growing.growing.get(node, {})
    kept = [k for k in range(len(node.results)) if k not in growing]
    places = _first(ctx, node, kept, node.args[3:])
    lists = [(g, begin(ctx, node.results[k], g)) for k, g in growing.items()]
    rows = _rows(ctx, lists)
    going = ctx.builder.number("bool")
    ctx.builder.emit(Loop())
    ctx.builder.emit(
        Scalar(Arith.I_LT, going.slot, (Use(index.slot), stop), int.__lt__)
        if step > 0
        else Scalar(Arith.I_GT, going.slot, (Use(index.slot), stop), int.__gt__)
    )
    ctx.builder.emit(Exit(going.slot))
    with ctx.block(region):
        params = [region.params[0], *(region.params[1 + k] for k in kept)]
        for param, place in zip(params, (Place(index, index.base), *places), strict=True):
            ctx.bind(param, place)
        body(region)
        ctx.enter(node)
        for (grown, buffer), row in zip(lists, rows, strict=True):
            _append(ctx, grown, buffer, row)
        _carry(ctx, [region.yields[k] for k in kept], places)
        ctx.builder.emit(Scalar(Arith.I_ADD, index.slot, (Use(index.slot), step), int.__add__))
    ctx.builder.emit(End())
    ctx.note(node, "block")


def lower_while(ctx: Context, node: Node, body: Body) -> None:
    """Test and body read what is carried from one place."""
    test, region = node.regions
    places = _first(ctx, node, range(len(node.results)), node.args)
    ctx.builder.emit(Loop())
    with ctx.block(test):
        for param, place in zip(test.params, places, strict=True):
            ctx.bind(param, place)
        body(test)
        ctx.enter(node)
        ctx.builder.emit(Exit(_tested(ctx, truth(ctx, test.yields[0]))))
    with ctx.block(region):
        for param, place in zip(region.params, places, strict=True):
            ctx.bind(param, place)
        body(region)
        ctx.enter(node)
        _carry(ctx, region.yields, places)
    ctx.builder.emit(End())
    ctx.note(node, "block")


# --- places


def _tested(ctx: Context, test: Use | int | float | bool) -> int:
    if isinstance(test, Use):
        return test.slot
    known = ctx.builder.number("bool")
    ctx.builder.emit(Scalar(Arith.COPY, known.slot, (bool(test),), same))
    return known.slot


def _place(ctx: Context, value: Value) -> Place:
    """The place of a result."""
    if is_number(value.type) or _is_object(value.type):
        storage = ctx.number(value)
        return Place(storage, storage.base)
    geometry = Geometry.of(tensor_type(value))
    storage = ctx.memory_for(value, geometry)
    ctx.bind(value, Place(storage, geometry))
    return ctx.place(value)


def _rows(ctx: Context, lists: Sequence[tuple[Growing, Place]]) -> list[Storage]:
    """For each list a number: the row that is written next."""
    rows = []
    for grown, _ in lists:
        rows.append(ctx.builder.number("int"))
        ctx.builder.emit(Scalar(Arith.COPY, rows[-1].slot, (len(grown.first),), same))
    return rows


def _append(ctx: Context, grown: Growing, buffer: Place, row: Storage) -> None:
    """Write the next row of a list."""
    found = ctx.place(grown.added)
    element = grown.row(0)
    if found.geometry.strides != element.strides:
        dense = ctx.builder.arena(element, buffer.storage.dtype)
        copy_into(ctx.builder, Place(dense, dense.base), found)
        found = Place(dense, dense.base)
    slot = ctx.builder.handle(found)
    ctx.builder.check(found.storage)
    nbytes = element.numel * buffer.storage.dtype.itemsize
    ctx.builder.emit(Blit(ctx.builder.handle(buffer), slot, nbytes, row.slot))
    ctx.builder.emit(Scalar(Arith.I_ADD, row.slot, (Use(row.slot), 1), int.__add__))


def _first(ctx: Context, node: Node, carried: Sequence[int], args: Sequence[Arg]) -> list[Place]:
    """The places of what a loop carries, which are those of its results, with the first values in them."""
    places = [_kept(ctx, node, k, args[k]) or _place(ctx, node.results[k]) for k in carried]
    _store_all(ctx, [args[k] for k in carried], places)
    return places


def _kept(ctx: Context, node: Node, k: int, arg: Arg) -> Place | None:
    """The place of a tensor that parts are written into, if the result may stay there."""
    result = node.results[k]
    if not isinstance(arg, Value) or not isinstance(result.type, TensorType) or not is_plain_type(result.type):
        return None
    if not writes_parts(node) or not is_plain_type(arg.type):
        return None
    place = ctx.place_to_write(arg, node, result)
    if place is not None:
        ctx.bind(result, place)
    return place


def _aim(ctx: Context, region: Region, places: Sequence[Place | None]) -> None:
    """Let what an arm yields be computed where it is wanted, unless something lies there (None)."""
    yielded = [v for arg in region.yields for v in values_in(arg)]
    for arg, place in zip(region.yields, places, strict=True):
        if (
            place is None
            or not isinstance(arg, Value)
            or place.storage.kind not in ("arena", "owned")
            or yielded.count(arg) != 1
        ):
            continue
        if arg.node is not None and arg.node.parent is region and ctx.is_fresh(arg):
            ctx.aim(arg, place.storage)


def _holds_object(place: Place) -> bool:
    return place.storage.kind == "object"


def _store_all(ctx: Context, args: Sequence[Arg], places: Sequence[Place]) -> None:
    """Copy values into places that none of them lies in."""
    rows = list(zip(args, places, strict=True))
    move(ctx, [(arg, place.storage.slot) for arg, place in rows if _holds_object(place)])
    for arg, place in rows:
        if not _holds_object(place):
            _store(ctx, arg, place)


def _store(ctx: Context, arg: Arg, place: Place) -> None:
    """Copy a value into a place."""
    target = place.storage
    if target.kind == "number":
        source = operand(ctx, arg)
        if source != Use(target.slot):
            ctx.builder.emit(Scalar(Arith.COPY, target.slot, (_of_kind(source, target, ctx),), same))
        return
    assert isinstance(arg, Value)
    found = ctx.place(arg)
    if found != place:
        copy_into(ctx.builder, place, found)


def _of_kind(number: Use | int | float | bool, target: Storage, ctx: Context) -> Use | int | float | bool:
    """A literal as the kind of its slot."""
    if isinstance(number, Use) or is_symbolic(number):
        return number
    return {"int": int, "float": float, "bool": bool}[ctx.builder.kinds[target.slot]](number)


def _carry(ctx: Context, yields: Sequence[Arg], places: Sequence[Place]) -> None:
    """Give the places their next values, all at once: what one of them still holds and another needs is kept first."""
    carried = {place.storage for place in places}
    later: list[tuple[Arg, Place, Place]] = []
    now: list[tuple[Arg, Place]] = []
    objects = [(arg, place.storage.slot) for arg, place in zip(yields, places, strict=True) if _holds_object(place)]
    for arg, place in zip(yields, places, strict=True):
        if _holds_object(place):
            continue
        if not isinstance(arg, Value):
            now.append((arg, place))
            continue
        is_plain = is_plain_type(arg.type)
        found = ctx.place(arg) if is_plain else Place(ctx.number(arg), place.geometry)
        if found == place:
            continue
        if found.storage not in carried:
            now.append((arg, place))
            continue
        if is_plain:
            kept = ctx.builder.arena(place.geometry, place.storage.dtype)
            copy_into(ctx.builder, Place(kept, kept.base), found)
        else:
            kept = ctx.builder.number(kind_of(arg.type))
            ctx.builder.emit(Scalar(Arith.COPY, kept.slot, (Use(found.storage.slot),), same))
        later.append((arg, Place(kept, kept.base), place))
    move(ctx, objects)
    for arg, place in now:
        _store(ctx, arg, place)
    for _, kept_at, place in later:
        if place.storage.kind == "number":
            ctx.builder.emit(Scalar(Arith.COPY, place.storage.slot, (Use(kept_at.storage.slot),), same))
        else:
            copy_into(ctx.builder, place, kept_at)
