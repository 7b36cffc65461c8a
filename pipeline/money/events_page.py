"""Writes docs/events.md from the kinds of events: `python -m culm.pipeline.money.events_page [--check]`."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from culm.pipeline.made_page import main
from culm.pipeline.money.kinds import FREQUENT, GROUPS, Event

PAGE = Path(__file__).resolve().parents[2] / "docs" / "events.md"

HEAD = """# Events

Made from `pipeline/money/kinds.py` by `python -m culm.pipeline.money.events_page`: change it there.

What happens to a run is a log of events. `culm events [--follow] [--kind lost,plan] [--json]` prints it; the
cost, the metrics' counters, and the dashboard's curves and incidents come from it.

On a terminal the colours say what matters: red is a lost node and whatever stops training, yellow what may need
somebody, green what is whole again. Elsewhere `culm events` prints plain text, a line for each event, and one with the
date where a new day begins. Both leave `usage` out unless `--all` or `--kind usage` asks for it. A terminal leaves out
`commit` and `measured` as well, of which every step has one, and says so. Scripts should read `--json`, which has every
event.

Every event has a `sequence`, a `time` (Unix seconds), a `kind`, a `text` in words, the `step` (how many are committed
by then) and the `generation` of the plan. The fields below stand beside these; one of the same name takes the place of
the common one. A value is text, and a float keeps its last bit. A field without a default is always there. A field that
does not apply is left out.
"""


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for title, kinds in GROUPS.items():
        lines.append(f"## {title}\n")
        for kind in kinds:
            lines.extend(_section(kind))
    return "\n".join(lines).rstrip() + "\n"


def _section(kind: type[Event]) -> Iterator[str]:
    often = " There is one for every step or more: the store keeps them apart." if kind in FREQUENT else ""
    yield f"### `{kind.kind}`\n"
    yield f"{' '.join((kind.__doc__ or '').split())}{often}\n"
    hints = get_type_hints(kind, include_extras=True)
    rows = [_row(each, hints[each.name]) for each in fields(kind)]
    if rows:
        yield "| field | type | what | default |\n| --- | --- | --- | --- |"
        yield "\n".join(rows) + "\n"


def _row(each: Field[Any], hint: Any) -> str:
    meaning = ""
    if get_origin(hint) is Annotated:
        hint, meaning = get_args(hint)
    if each.default is MISSING:
        default = "none" if each.default_factory is not MISSING else ""
    else:
        default = f"`{each.default}`" if each.default not in ("", None, ()) else "none"
    return f"| `{each.name}` | {_type(hint)} | {meaning} | {default} |"


def _type(hint: Any) -> str:
    known = [arg for arg in get_args(hint) if arg is not type(None)]
    first = known[0] if type(None) in get_args(hint) else hint
    return {str: "text", int: "integer", float: "number"}.get(first, "text")


if __name__ == "__main__":
    raise SystemExit(main(PAGE, page(), __spec__.name))
