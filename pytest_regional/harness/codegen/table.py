"""Events as a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pytest_regional.harness.codegen.events import CodeEvent, KernelLaunch, Op


def rows(events: Iterable[CodeEvent], marked: Collection[int] = ()) -> list[str]:
    """Return one line per event, ``>`` before those whose position is in ``marked``; aliases are left out."""
    shown = [(n, event) for n, event in enumerate(events) if event.kind != "alias" or n in marked]
    return [
        f"{'>' if n in marked else ' '} {event.line:5} {_indent(event)}{event.kind:10} {_told(event)}"
        for n, event in shown
    ]


def _indent(event: CodeEvent) -> str:
    return "  " * len(event.path)


def _told(event: CodeEvent) -> str:
    text = event.text if len(event.text) <= 100 else event.text[:97] + "..."
    if isinstance(event, KernelLaunch) and event.loops > 1:
        text += f"  (loop {event.loop} of {event.loops})"
    if event.stream:
        text += f"  (stream {event.stream})"
    return f"{text}  [{ops_shown(event.ops)}]" if event.ops is None or event.ops else text


def ops_shown(ops: tuple[Op, ...] | None) -> str:
    """Return ``aten.mm.default, aten.silu(neg, exp, add, div)``."""
    if ops is None:
        return "ops unknown"
    pieces: dict[str, list[str]] = {}
    for op in ops:
        pieces.setdefault(op.inside or op.name, []).extend([op.name.split(".")[1]] if op.inside else [])
    return ", ".join(f"{name}({', '.join(inner)})" if inner else name for name, inner in pieces.items())
