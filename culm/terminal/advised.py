"""What ``culm plan`` says of the ways that it has simulated: as a table and in words, and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from culm.simulator.markets.advice import Outlook, Placed, against, next_best, why
from culm.simulator.markets.at_commits import at_commit, calm_step
from culm.simulator.markets.first_guess import Conditions
from culm.simulator.markets.ways import Way, settings_of

AUDITED = 0.05  # the share of forwards of which a plan says what audits would cost, where the job asks for none
TOLD_FROM = 1e-4  # of a step: what adds less is not told


@dataclass(frozen=True, slots=True)
class Advised:
    """``found``: the ways that were held against all markets."""

    conditions: Conditions
    found: tuple[Outlook, ...]
    chosen: Outlook | None
    deadline_days: float | None
    has_url: bool = True  # whether the job says where checkpoints lie

    def next_best(self) -> Outlook | None:
        return next_best(self.found, self.chosen, self.deadline_days) if self.chosen is not None else None

    def as_json(self, lies: Placed | None) -> dict[str, Any]:
        other = self.next_best()
        return {
            "best": asdict(self.chosen) if self.chosen else None,
            "next_best": asdict(other) if other else None,
            "settings": self._settings(self.chosen.way) if self.chosen else [],
            "layers": self._layers(lies),
            "zones": self._zones(lies),
        }

    def _settings(self, way: Way) -> list[str]:
        url = ["checkpoint.url=URL"] if way.checkpoint_steps and not self.has_url else []
        return [*url, *settings_of(way)]

    def _layers(self, lies: Placed | None) -> str:
        return lies.layers_in_words(self.conditions.profile) if lies is not None else ""

    def _zones(self, lies: Placed | None) -> str:
        """Who is apart, and what crosses."""
        if lies is None or not lies.stages:
            return ""
        return lies.zones_in_words(self.conditions.profile, self.conditions.cluster)

    # ---- for people -------------------------------------------------------------------------------------------------

    def show(self, lies: Placed | None) -> None:
        from rich.console import Console

        console, table = Console(highlight=False), self._table()
        if console.measure(table).minimum > console.width:
            Console(highlight=False, width=console.measure(table).maximum).print(table)
        else:
            console.print(table)
        chosen = self.chosen
        if chosen is None:
            console.print("No way is done often enough, or by the deadline: try more machines, or a later deadline.")
            return
        console.print(
            f"\nRent {_rented(chosen.way)}: {_run(chosen.way)}. Done in {span(chosen.days, chosen.days)} at "
            f"{chosen.samples_per_second:.4g} samples/s for ${chosen.cost:.2f}; a run goes back to a checkpoint "
            f"in {chosen.rollback_risk * chosen.markets:.0f} of {chosen.markets} markets.",
            markup=False,
        )
        other = self.next_best()
        if other is not None:
            console.print(
                f"Next best: {_rented(other.way)}: {_run(other.way)}. Done in {span(other.days, other.days)} for "
                f"${other.cost:.2f}: {against(other, chosen)}.",
                markup=False,
            )
        for what, words in (("Stages", self._layers(lies)), ("In zones", self._zones(lies))):
            if words:
                console.print(f"  {what}: {words}.", markup=False)
        for said in (*self._adds(chosen.way), *why(chosen, self.found)):
            console.print(f"  {said}", markup=False)
        settings = " ".join(f"--set {each}" for each in self._settings(chosen.way))
        console.print(f"  To run it so: {settings}", markup=False, soft_wrap=True)

    def _table(self) -> Any:
        from rich.table import Table

        several = any(x.way.replicas > 1 for x in self.found)
        kinds = any(x.way.kind for x in self.found)
        zones = any(x.way.zones for x in self.found)
        heads = ["machine"] if kinds else []
        heads += ["nodes", "shape" if several else "stages", "redundancy"]
        heads += ["zones"] if zones else []
        heads += ["saves", "samples/s", "time", "$", "rollback"]
        title = "the ten best; ranges are of eight markets in ten"
        if several:
            title += "; a shape is replicas x stages"
        table = Table(*heads, box=None, pad_edge=False, title=title, title_justify="left")
        for x in self._ten():
            way, (cheap, dear) = x.way, x.cost_range
            cells = [way.kind] if kinds else []
            cells += [f"{way.machines}", f"{way.replicas}x{way.stages}" if several else f"{way.stages}"]
            more = f", {way.copies} copies" if way.copies > 2 else ""
            cells.append(way.redundancy + more + (", host" if way.standby == "host" else ""))
            cells += [", ".join(way.zones) or "all"] if zones else []
            cells += [f"{way.checkpoint_steps or 'never'}", f"{x.samples_per_second:.4g}", span(*x.days_range)]
            cells += [f"{cheap:.4g}-{dear:.4g}", f"{x.rollback_risk:.0%}"]
            table.add_row(*cells, style="bold" if x is self.chosen else "")
        for column in table.columns:
            column.no_wrap = True
        return table

    def _ten(self) -> list[Outlook]:
        """Of ways that differ in their copies or checkpoints alone the best one."""
        nearest: dict[Way, Outlook] = {}
        for x in sorted(self.found, key=lambda x: (x is not self.chosen, -x.done, x.cost * x.days, x.days)):
            nearest.setdefault(replace(x.way, checkpoint_steps=0, copies=0, standby=""), x)
        return list(nearest.values())[:10]

    def _adds(self, way: Way) -> Iterator[str]:
        """What settings add to a step, and what audits would."""
        conditions = self.conditions
        profile, stages = conditions.profile_of(way), conditions.stages_of(way)
        step = calm_step(profile, stages, conditions.cluster).seconds
        asked = conditions.audit or (AUDITED if way.redundancy != "off" else 0.0)
        adds = at_commit(profile, way, stages, conditions.cluster, asked)
        for name, seconds in (
            ("sending gradients to standbys", adds.copies),
            ("standbys in the host's memory", adds.host),
            ("copying state for checkpoints", adds.checkpoints),
        ):
            if seconds > TOLD_FROM * step:
                yield f"{name} adds {seconds / step:.1%} to a step"
        if asked:
            costs = (
                f"{adds.audits / step:.1%} to a step" if adds.audits > TOLD_FROM * step else "nothing: bubbles hold it"
            )
            yield f"audit {asked:g} {'adds' if conditions.audit else 'would add'} {costs}"


def _rented(way: Way) -> str:
    kind = f" {way.kind}" if way.kind else ""
    return f"{way.machines}{kind}{' in ' + ', '.join(way.zones) if way.zones else ''}"


def _run(way: Way) -> str:
    every = way.checkpoint_steps
    saves = f"a checkpoint every {every} steps" if every else "no checkpoint, since it is done before the first"
    return f"{way.shape} and {way.spares} spare(s), redundancy {way.redundancy!r}, {way.copies_in_words}, {saves}"


def span(first: float, last: float) -> str:
    """Days in a unit that fits."""
    unit, name = next(
        ((unit, name) for unit, name in ((1.0, "days"), (1 / 24, "h"), (1 / 1440, "min")) if last >= 2 * unit),
        (1 / 86400, "s"),
    )
    one, other = f"{first / unit:.3g}", f"{last / unit:.3g}"
    return f"{one} {name}" if one == other else f"{one}-{other} {name}"
