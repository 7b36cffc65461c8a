"""What a worker asks its node to send and to report: frozen data, carried out in order by ``carry_out``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from culm.pipeline.audits import Audited
from culm.pipeline.keys import Key
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Plan, PlanOrder
from culm.pipeline.ties import Addend

# Effects are carried out in the order in which the worker's parts asked for them. Some of it is protocol:
#
# - Adopted is the first of a new plan: it opens the streams that the others need. An heir's tensors once went to a peer
#   that the node had no stream to, and the node ended.
# - SayHello comes before the Sends of the plan, so that a peer knows under which plan they come (rule 3).
# - The Acknowledges that answer a Hello come before its AnswerHello: after it the peer takes what was not named for
#   lacking, and an heir computes it again (rule 9).
#
# A report may be lost with the order stream. No effect repeats it: on attaching again the node tells its facts anew,
# which ``Facts.repeated`` and ``repeated_settled`` give (rule 6).


@dataclass(frozen=True, slots=True)
class Send:
    """Send the outbox's value of the key to a peer."""

    # The value is looked up when the stream comes to it: it may have been acknowledged or forgotten by then.
    peer: str
    key: Key
    later: bool = False  # the node's own next work goes first


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell a peer that its tensor is here, or is of no use here any more."""

    peer: str
    key: Key


@dataclass(frozen=True, slots=True)
class SayHello:
    """Tell a peer which plan this node obeys; it answers with what it has."""

    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a node stands, as it answers a Hello."""

    order: PlanOrder  # of the plan that the Hello named
    era: int
    committed: int  # steps, as far as it knows, applied there or not yet; what follows is of the step after these
    # Of buckets that it reduces, for an owner that may have inherited work of these: the pipelines in what has come.
    covers: Mapping[Addend, frozenset[int]] = field(default_factory=dict)
    # Buckets whose whole sum it has, of those that the asking node reduces.
    reduced: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class AnswerHello:
    """All that is here of the peer's has been acknowledged; this is where this node stands."""

    peer: str
    standing: Standing


@dataclass(frozen=True, slots=True)
class Forfeit:
    """What this node holds cannot be brought up to the committed step: it is to join anew, holding nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class FetchLayers:
    """Ask a holder for the state of these layers.

    ``at_once``: as fast as it goes, since the holder's copy is the only one.
    """

    peer: str
    layers: tuple[int, ...]
    era: int
    at_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReady:
    """A fact for the coordinator (rule 6): the whole reduced gradient of these layers is here, for this step."""

    # The coordinator derives the commit from these: the clip scale from the norms, the loss from the tallies. They are
    # told one by one and never summed up here, so that it adds them in one order, whoever reports (rule 7).
    era: int
    step: int
    stage: int
    first_layer: int
    squared_norms: tuple[float, ...]  # a layer's each, from ``first_layer`` on
    tallies: tuple[float, ...]  # of every microbatch, in order; of the last stage alone
    redone: int  # instructions that this node did again for a lost owner
    # Where the job audits: digests of the layers' state, one each; of forwards that this node has run again; of what it
    # has taken of such forwards.
    states: tuple[int, ...] = ()
    audited: tuple[Audited, ...] = ()
    taken: tuple[Audited, ...] = ()
    order: PlanOrder | None = None  # and of the plan whose audits of this part are done; None: nobody audits


@dataclass(frozen=True, slots=True)
class RestoreLayers:
    """Read these layers' state from the checkpoint that the era begins from."""

    origin: Origin
    layers: tuple[int, ...]
    era: int


@dataclass(frozen=True, slots=True)
class ReportCaughtUp:
    """Layers that were behind are at this node's version."""

    era: int
    first_layer: int
    end_layer: int
    version: int
    order: PlanOrder  # of the plan that this node obeys: after the last commit no other counts (rule 17)


@dataclass(frozen=True, slots=True)
class ReportResumed:
    """The first instruction of a stage begins that came here with this generation's plan."""

    generation: int
    stage: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """A plan took effect: streams to peers that it does not name can go, others must be there."""

    plan: Plan


Effect = (
    Send
    | Acknowledge
    | SayHello
    | AnswerHello
    | Forfeit
    | FetchLayers
    | RestoreLayers
    | ReportReady
    | ReportCaughtUp
    | ReportResumed
    | Adopted
)


class Node(Protocol):
    """Who carries effects out: the process, and the simulated node. No call waits."""

    def send(self, effect: Send) -> None: ...
    def acknowledge(self, effect: Acknowledge) -> None: ...
    def say_hello(self, effect: SayHello) -> None: ...
    def answer_hello(self, effect: AnswerHello) -> None: ...
    def forfeit(self, effect: Forfeit) -> None: ...
    def fetch_layers(self, effect: FetchLayers) -> None: ...
    def restore_layers(self, effect: RestoreLayers) -> None: ...
    def report(self, fact: ReportReady | ReportCaughtUp | ReportResumed) -> None: ...
    def adopted(self, effect: Adopted) -> None: ...


def carry_out(effects: Iterable[Effect], node: Node) -> None:
    """Hands each to the node, in order: the one interpreter of what workers want."""
    for effect in effects:
        match effect:
            case Send():
                node.send(effect)
            case Acknowledge():
                node.acknowledge(effect)
            case SayHello():
                node.say_hello(effect)
            case AnswerHello():
                node.answer_hello(effect)
            case Forfeit():
                node.forfeit(effect)
            case FetchLayers():
                node.fetch_layers(effect)
            case RestoreLayers():
                node.restore_layers(effect)
            case ReportReady() | ReportCaughtUp() | ReportResumed():
                node.report(effect)
            case Adopted():
                node.adopted(effect)
            case _:
                assert_never(effect)
