"""Incidents as blocks of lines, in the dashboard's words: when, what was lost, why, how long, what was redone, cost."""

from collections.abc import Iterable, Iterator
from datetime import tzinfo

from rich.console import Console
from rich.text import Text

from culm.pipeline.counting import counted
from culm.pipeline.money.example_prices import at_example_prices
from culm.protos import coordinator_pb2 as pb
from culm.terminal.severity import Severity
from culm.ui.incident_facts import facts, origin_of
from culm.ui.incidents import Incident
from culm.ui.words import after, moment

NOTHING = "Nothing has gone wrong: no node was lost or handed over, and nothing stood still."
INDENT, NAMES = "  ", 21  # the column of names: as wide as the longest
STYLES = {"handover": Severity.WARNING, "coordinator": Severity.WARNING}  # the others took something away


def block(incident: Incident, cost: pb.GetCostResponse, zone: tzinfo) -> Iterator[tuple[str, str]]:
    """What is told of one: (name, words)."""
    yield "why", incident.why
    yield (
        "then",
        "; ".join(f"{what} +{after(ms)}" for what, ms in incident.moments()) + f" after the {origin_of(incident)}",
    )
    charge = incident.charge(cost.interruptions)
    told = facts(incident, charge, cost.done, zone, at_example_prices(cost.nodes))
    yield from (fact for fact in told if fact[0] != "origin")  # that is what the moments count from


def write(console: Console, incidents: Iterable[Incident], cost: pb.GetCostResponse, zone: tzinfo) -> None:
    """The oldest first, a block each."""
    found = list(incidents)
    for incident in found:
        style = STYLES.get(incident.kind, Severity.BAD).value
        head = Text.assemble((moment(incident.time, zone), "bold"), INDENT, (incident.title, style))
        console.print(head, soft_wrap=True, highlight=False)
        for name, words in block(incident, cost, zone):
            line = Text.assemble(INDENT, (f"{name:<{NAMES}}", "dim"), words)
            console.print(line, soft_wrap=True, highlight=False)
        console.print()
    console.print(f"{counted(len(found), 'incident')}." if found else NOTHING, soft_wrap=True, highlight=False)
