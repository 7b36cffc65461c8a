"""What outlives a coordinator: the parts of its state that a successor needs, as plain JSON-able data."""

# What is left out is learnt from nodes when they attach: who holds what, at which version, what is ready. A fact that
# was persisted could be older than the node's own word. What is in it counts until nodes know better (``takeover``), so
# it may be old, but never wrong: it is written after the decision, in one piece, under the leader's term.
#
# If the store forgets the document:
#
#     nodes tell again          plan, with a pause, era, origin, committed, last_commit, early_stop, layer_costs,
#                               layer_bytes, fingerprint, most of agreement; layer_seconds and what layers put out, if
#                               one that measured them is still there
#     the storage shows         checkpoints
#     nobody knows any more     fenced, draining, parted, resumed, limits that an operator set, a pause that no plan has
#                               yet, that the run has ended, what audits have found, with what is in doubt for it, and
#                               how long steps usually take
#
# No moments are written: they are of this process's clock, which says nothing to another process. Every wait begins
# anew.
#
# Keys that came later are read with a default (``document.get``), so a run goes on over an older state. A state that
# lacks another key cannot be read: the leader then goes by what nodes and checkpoints tell.

from dataclasses import asdict, replace
from typing import Any

from culm.coordinator import links
from culm.coordinator.agreement import agreement_from, agreement_to
from culm.coordinator.checks import Checks
from culm.coordinator.failures import Failures
from culm.coordinator.requests import Limits
from culm.coordinator.state import Ending, Node, Phase, Search, Settings, State, Storage, Watch
from culm.pipeline.early_stop import NONE_SO_FAR, EarlyStop, best_so_far_from, best_so_far_to
from culm.pipeline.layer_bytes import LayerBytes
from culm.pipeline.origin import Origin
from culm.pipeline.pause import Pause
from culm.pipeline.plan import Member, Plan
from culm.pipeline.plan_codec import commit_from_text, commit_to_text, plan_from_text, plan_to_text

Document = dict[str, Any]
AUDITED = ("forwards", "compared", "differed")  # sums over the whole run


def to_document(state: State) -> Document:
    """The state without what nodes repeat when they attach again."""
    return {
        "term": state.term,
        "phase": state.phase.value,
        "era": state.era,
        "committed": state.committed,
        "generation": state.generation,
        "plan": plan_to_text(state.plan) if state.plan else None,
        "layer_costs": list(state.layer_costs),
        "layer_seconds": list(state.layer_seconds),
        "layer_bytes": [[each.state, each.gradient, each.boundary] for each in state.layer_bytes],
        "fingerprint": state.fingerprint,
        "agreement": agreement_to(state.agreement),
        "fenced": sorted([node, incarnation] for node, incarnation in state.fenced),
        "fenced_up_to": state.fenced_up_to,
        "evaluated": {str(step): [x.hex() for x in numbers] for step, numbers in state.evaluated.items()},
        "last_commit": commit_to_text(state.last_commit) if state.last_commit else None,
        "exposed": sorted(state.exposed_since),
        "origin": _origin_to(state.origin),
        "resumed": state.resumed,
        "checkpoints": [_origin_to(checkpoint) for checkpoint in state.checkpoints],
        "ending": [state.ending.fetched, state.ending.released],
        "early_stop": _early_stop_to(stop) if (stop := state.ending.early_stop) is not None else None,
        "draining": {n.node: [n.incarnation, n.draining] for n in state.nodes.values() if n.draining},
        "copies": state.copies,
        "pause": asdict(state.pause) if state.pause is not None else None,
        "limits": asdict(state.limits) if state.limits is not None else None,
        "parted": {node: parted.peer for node, parted in state.parted.items()},
        "checks": _checks_to(state.checks),
        "step_seconds": list(state.watch.recent),
    }


def _checks_to(checks: Checks) -> Document:
    doubts = [sorted(nodes) for nodes in checks.doubts]
    sums = {name: getattr(checks, name) for name in AUDITED}
    known = {"doubted": list(checks.doubted), "found": dict(checks.found), "good": dict(checks.good)}
    return {"doubts": doubts, **known, **sums}


def _checks_from(known: Document) -> Checks:
    since, until = known.get("doubted", (0, 0))
    doubts = tuple(map(frozenset, known.get("doubts", ())))
    sums = {name: known.get(name, 0) for name in AUDITED}
    found, good = known.get("found", {}), known.get("good", {})
    return Checks(doubts=doubts, doubted=(since, until), found=found, good=good, **sums)


def _layer_bytes_from(numbers: list[int]) -> LayerBytes:
    state, gradient, boundary = (*numbers, 0)[:3]  # an older store has two numbers
    return LayerBytes(state, gradient, boundary)


def _count(number: Any) -> int:
    """Raises ValueError for what is none: decisions would raise at it, in each coordinator that is started."""
    if type(number) is not int or number < 0:
        raise ValueError(f"{str(number)[:40]!r} is not a count")
    return number


def from_document(document: Document, settings: Settings, term: int, now: float, leader: int = 0) -> State:
    """The state under a new term; the plan's members count as detached since now and may come back."""
    plan = plan_from_text(document["plan"]) if document["plan"] else None
    nodes = {
        m.node: replace(
            Node(
                node=m.node,
                incarnation=m.incarnation,
                address=m.address,
                pid=0,
                zone=m.zone,
                # Until it attaches: as a node whose order stream broke at this moment, so it has the patience to come.
                available=False,
                attached_since=None,
                detached_at=now,
                heard_at=now,
            ),
            draining=_draining(document, m),
        )
        for m in (plan.members.values() if plan else ())
        if (m.node, m.incarnation) not in {(a, b) for a, b in document["fenced"]}
    }
    return State(
        settings=settings,
        term=term,
        leader=leader,
        # A job at fault may have been mended since: a coordinator that starts again tries again.
        phase=_going_on(Phase(document["phase"]), plan),
        era=_count(document["era"]),
        committed=_count(document["committed"]),
        generation=_count(document["generation"]),
        plan=plan,
        layer_costs=tuple(document["layer_costs"]),
        layer_seconds=tuple(document.get("layer_seconds", ())),
        layer_bytes=tuple(map(_layer_bytes_from, document.get("layer_bytes", ()))),
        fingerprint=document["fingerprint"],
        agreement=agreement_from(document.get("agreement")),
        nodes=nodes,
        fenced=frozenset((node, incarnation) for node, incarnation in document["fenced"]),
        fenced_up_to=document.get("fenced_up_to", 0),
        last_commit=commit_from_text(document["last_commit"]) if document["last_commit"] else None,
        exposed_since=dict.fromkeys(document["exposed"], now),
        origin=_origin_from(document["origin"]),
        resumed=document["resumed"],
        checkpoints=tuple(map(_origin_from, document["checkpoints"])),
        evaluated={int(s): tuple(map(float.fromhex, x)) for s, x in document.get("evaluated", {}).items()},
        # Those on record may have been deleted since, and others have come.
        storage=Storage(search=Search.NEEDED if settings.searches else Search.OVER),
        copies=document.get("copies", 0),
        parted={node: links.parted(peer, settings, now) for node, peer in document["parted"].items()},
        ending=_ending_from(document, now),
        checks=_checks_from(document.get("checks", {})),
        watch=Watch(recent=tuple(map(float, document.get("step_seconds", ())))),
        pause=Pause(**document["pause"]) if document.get("pause") else None,
        limits=Limits(**document["limits"]) if document.get("limits") else None,
        took_over_at=now,  # nothing is lost or committed before the nodes had the time to tell (rule 8)
        changed_at=now,
        detail=_detail_of(document),
    )


def _origin_to(origin: Origin) -> list[Any]:
    best = origin.best_so_far
    return [origin.step, origin.folder, origin.sha256, best_so_far_to(best) if best is not None else None]


def _origin_from(known: list[Any]) -> Origin:
    step, folder, sha256, best = (*known, None)[:4]  # an older store has three of them
    nothing = None if folder else NONE_SO_FAR
    return Origin(step, folder, sha256, best_so_far_from(best) if best is not None else nothing)


def _early_stop_to(stop: EarlyStop) -> list[Any]:
    return [stop.step, best_so_far_to(stop.best_so_far)]


def _ending_from(document: Document, now: float) -> Ending:
    """Who fetched the weights, and whether the nodes were let go, is decided once; the time to fetch begins anew."""
    fetched, released = document.get("ending", ["", ""])
    stop = document.get("early_stop")
    return Ending(
        done_at=now if Phase(document["phase"]) is Phase.DONE else None,
        early_stop=EarlyStop(stop[0], best_so_far_from(stop[1])) if stop else None,
        fetched=fetched,
        released=released,
    )


def _detail_of(document: Document) -> str:
    released: str = document.get("ending", ["", ""])[1]
    return released or "waiting for the nodes to attach again"


def _draining(document: Document, member: Member) -> str:
    """Why the node is to go. A process that was started again meanwhile is not meant."""
    incarnation, why = document.get("draining", {}).get(member.node, (0, ""))
    return why if incarnation == member.incarnation else ""


def _going_on(phase: Phase, plan: Plan | None) -> Phase:
    if phase is not Phase.FAILED:
        return phase
    if plan is None:
        return Phase.WAITING
    return Phase.PAUSED if plan.pause is not None else Phase.RUNNING


def without_volatile(state: State) -> State:
    """The state as it looks after a round trip, for comparison."""
    return replace(
        state,
        nodes={},
        evidence={},
        facts={},
        following={},
        norms={},
        tallies=(),
        checks=state.checks.lasting(),
        bookmarks={},
        lost_owners=(),
        storage=Storage(),
        review=None,
        watch=Watch(recent=state.watch.recent),
        ending=replace(state.ending, done_at=None),
        stopping=None,
        saving=None,
        spending=None,
        paused_at=None,
        took_over_at=None,
        failures=Failures(),
        changed_at=0.0,
        lost_at=(),
    )
