"""The atlas as a table for a terminal and as one HTML page: what fires where and what it gives."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from importlib.resources import files

from rich.table import Table

from smelt.inspect.atlas.card import Card, Effect
from smelt.inspect.shown import size

_COLOURS = ("#3b6fb6", "#d9822b", "#3f9142", "#b23b6f", "#7a5bb0", "#8a6d3b", "#2e8b8b", "#777f8c", "#b0413e")
_UNSAID = "–"


def table_of(cards: Sequence[Card]) -> Table:
    """One row a program."""
    table = Table(title="Architectures", title_justify="left")
    for head in (
        "program",
        "nodes",
        "blocks",
        "kernels",
        "own ops",
        "eager",
        "smelt",
        "speed-up",
        "trained",
        "bound by",
    ):
        table.add_column(head, justify="left" if head in ("program", "blocks", "bound by") else "right")
    for card in cards:
        if card.failed:
            table.add_row(card.name, "", card.failed)
            continue
        table.add_row(*_cells(card))
    return table


def _cells(card: Card) -> list[str]:
    blocks = ", ".join(f"{count} {kind}" for kind, count in card.regions.items())
    own = _UNSAID if card.own_flops is None else f"{card.own_flops:.0%}"
    trained = _UNSAID
    if card.training is not None and card.training.speed_up is not None:
        trained = f"{card.training.speed_up:.2f}"
    speed = f"{card.speed_up:.2f}" if card.is_measurement else "busy"
    nodes = f"{card.captured} → {card.optimized}"
    times = [f"{us:,.0f} µs" for us in (card.eager_us, card.smelt_us)]
    return [card.name, nodes, blocks, str(card.kernels), own, *times, speed, trained, card.bound]


def text_of(card: Card) -> str:
    """What a program is made of, what each optimisation gives, and what would help next."""
    lines = [f"{card.name}: {card.summary}"]
    if card.failed:
        return f"{lines[0]}\n  {card.failed}"
    lines += [f"  {effect.what:<18} {_told(effect)}" for effect in card.effects]
    lines.append(f"  other sizes: {card.sizes}")
    if card.training is not None:
        t = card.training
        told = t.note or f"{t.forward} nodes forward, {t.backward} backward, {size(t.saved_nbytes)} saved between"
        lines.append(f"  training: {told}")
    lines += [f"  next: {sentence}" for sentence in card.advice]
    return "\n".join(lines)


def _told(effect: Effect) -> str:
    parts = [effect.fired]
    if effect.time is not None and not effect.note:
        parts.append("no time beyond noise" if effect.in_noise else f"{effect.time:.2f} times the time without it")
    if effect.memory is not None and abs(effect.memory - 1) > 0.01:
        parts.append(f"{effect.memory:.2f} times the memory")
    return "; ".join(filter(None, (*parts, effect.note)))


def page_of(cards: Sequence[Card], conditions: str, links: Mapping[str, str] | None = None) -> str:
    """The atlas as one HTML file. links: the page of each program, by its name."""
    style = (files("smelt.inspect.atlas") / "atlas.css").read_text(encoding="utf-8")
    shown = [card for card in cards if not card.failed]
    body = [
        "<h1>How architectures look, and what makes them fast</h1>",
        f"<p>{html.escape(conditions)}</p>",
        _section("Programs", _programs(cards)),
        _section("Times as fast as eager, each program alone", _bars(shown)),
        _section("Operators of each graph, by kind", _stacks({c.name: c.operators for c in shown}, "nodes")),
        _section("Where a call's time goes", _stacks({c.name: c.split for c in shown if c.split}, "µs")),
        _section("Time without an optimisation, over the time with it", _heat(shown)),
        *(_block(card, (links or {}).get(card.name)) for card in cards),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>Smelt: architectures</title><style>{style}</style></head>\n"
        f"<body><main>{''.join(body)}</main></body></html>"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>"


def _wide(content: str, label: str) -> str:
    return f'<div class=wide tabindex=0 role=region aria-label="{html.escape(label)}">{content}</div>'


def _rows(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are markup already."""
    head = "".join(f"<th scope=col>{html.escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return _wide(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", heads[0])


def _programs(cards: Sequence[Card]) -> str:
    heads = [
        "program",
        "nodes",
        "blocks",
        "kernels",
        "own operations",
        "eager",
        "smelt",
        "speed-up",
        "trained",
        "bound by",
    ]
    rows = []
    for card in cards:
        name = f'<a href="#{html.escape(_anchor(card.name))}">{html.escape(card.name)}</a>'
        cells = [html.escape(cell) for cell in _cells(card)[1:]] if not card.failed else [html.escape(card.failed)]
        rows.append([name, *cells])
    return _rows(heads, rows)


def _anchor(name: str) -> str:
    return "p-" + "".join(sign if sign.isalnum() else "-" for sign in name)


def _bars(cards: Sequence[Card]) -> str:
    most = max((card.speed_up for card in cards if card.is_measurement), default=0.0)
    if not most:
        return "<p>The machine was busy: no measurement.</p>"
    rows = []
    for card in cards:
        if not card.is_measurement:
            rows.append([html.escape(card.name), "busy machine: no measurement"])
            continue
        bar = f'<span class=bar style="width:{100 * card.speed_up / most:.1f}%"></span>'
        rows.append([html.escape(card.name), f"<span class=track>{bar}</span> {card.speed_up:.2f}"])
    return _rows(["program", "times as fast"], rows)


def _stacks(found: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Shares of a whole as one bar a program, with the numbers as its text."""
    kinds = list(dict.fromkeys(kind for parts in found.values() for kind in parts))
    colour = {kind: _COLOURS[i % len(_COLOURS)] for i, kind in enumerate(kinds)}
    rows = []
    for name, parts in found.items():
        total = sum(parts.values()) or 1.0
        bar = "".join(
            f'<span style="width:{100 * part / total:.1f}%;background:{colour[kind]}"></span>'
            for kind, part in parts.items()
        )
        told = ", ".join(f"{kind} {part:,.0f}" for kind, part in parts.items())
        rows.append([html.escape(name), f"<span class=stack>{bar}</span><small>{html.escape(told)} {unit}</small>"])
    key = "".join(f'<li><span style="background:{colour[kind]}"></span>{html.escape(kind)}</li>' for kind in kinds)
    return f"<ul class=key>{key}</ul>{_rows(['program', 'share'], rows)}"


def _heat(cards: Sequence[Card]) -> str:
    """Programs against optimisations: blank where one did not fire."""
    names = list(dict.fromkeys(effect.what for card in cards for effect in card.effects))
    if not names:
        return "<p>Nothing was omitted.</p>"
    rows = []
    for card in cards:
        found = {effect.what: effect for effect in card.effects}
        rows.append([html.escape(card.name), *(_heat_cell(found.get(name)) for name in names)])
    return _rows(["program", *names], rows)


def _heat_cell(effect: Effect | None) -> str:
    if effect is None:
        return ""
    title = html.escape(_told(effect))
    if effect.time is None or effect.note:
        return f'<span title="{title}">?</span>'
    if effect.in_noise:
        return f'<span title="{title}">in noise</span>'
    share = min(abs(effect.time - 1), 1.0)
    kind = "gain" if effect.time > 1 else "loss"
    return f'<span class={kind} style="--share:{share:.2f}" title="{title}">{effect.time:.2f}</span>'


def _block(card: Card, link: str | None) -> str:
    page = f' <a href="{html.escape(link)}">look inside</a>' if link else ""
    head = f'<h3 id="{html.escape(_anchor(card.name))}">{html.escape(card.name)}{page}</h3>'
    return f"<section>{head}<pre>{html.escape(text_of(card))}</pre></section>"
