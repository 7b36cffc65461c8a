"""What nodes have computed of the same things, and where they differ: one of them computes wrongly (rule 25). Pure."""

# Two things are told twice in a step, where the job audits:
#
#     the state of a layer        by each of its holders
#     the output of a forward     by whoever took it, and by another holder of the stage, which ran it again; in the
#                                 last stage by the tallies, and by that holder
#
# Where two differ one of them is wrong. Of three and more the few are. Of two nobody can say which: both are in doubt,
# and it is remembered. Whoever is in doubt with two others, which are not with each other, is the one.
#
# How far back a doubt reaches: a machine that is wrong now and then passes many audits. So one that agrees proves
# little where not all forwards are audited; a row of them proves that the machine was right when the row began. Of one
# that is wrong in half of its forwards a row of 16 comes once in 65,000.

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from culm.pipeline.audits import Audited, digest_of_numbers
from culm.pipeline.instruction import Duty
from culm.pipeline.plan import Plan, PlanOrder

DOUBTS_KEPT = 64
MOST_LIVES = 2  # of a node that was found to compute wrongly: its machine is not let in again
# Times in a row that the same two nodes may differ: with nobody else to ask, to go back once more changes nothing.
MOST_OF_TWO = 12

PROOF = 16  # audits in a row

Forward = tuple[int, int, int]  # pipeline, stage, microbatch
Holder = tuple[str, int]  # a node's incarnation: what one has told says nothing of the copy that the next one is given


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that nodes have computed differently."""

    what: str  # in words
    nodes: frozenset[str]  # of which one at least is wrong, if that is known
    guilty: frozenset[str]  # those that most others speak against
    of_state: bool = False


@dataclass(frozen=True, kw_only=True)
class Checks:
    """The first four are of the running step."""

    states: Mapping[int, Mapping[Holder, int]] = field(default_factory=dict)  # layer -> holder -> digest
    taken: Mapping[Forward, int] = field(default_factory=dict)  # the digest of what was used
    audited: Mapping[Forward, Mapping[str, int]] = field(default_factory=dict)  # auditor -> the digest that it found
    # Node -> the order of a plan, and the layers of which all that it is to audit under that plan is told. None: it is
    # of an older version, and does not say under which plan.
    done: Mapping[str, tuple[PlanOrder | None, frozenset[int]]] = field(default_factory=dict)
    doubts: tuple[frozenset[str], ...] = ()  # of steps before, the newest last; those that are explained are gone
    doubted: tuple[int, int] = (0, 0)  # checkpoints after the first step, up to the second, are struck off
    in_a_row: int = 0  # doubts since the last commit
    found: Mapping[str, int] = field(default_factory=dict)  # node -> how often it was found to compute wrongly
    # Node -> the steps of its last audits, those that agreed in a row; and the last step at which a row of them began.
    passed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    good: Mapping[str, int] = field(default_factory=dict)
    # Of the whole run, for people: forwards run again and states of layers compared, all of which agreed; and doubts.
    forwards: int = 0
    compared: int = 0
    differed: int = 0

    def told(
        self,
        holder: Holder,
        first_layer: int,
        states: Sequence[int],
        taken: Sequence[Audited],
        audited: Sequence[Audited],
    ) -> "Checks":
        """With what a node that is ready says. The first word counts, as of all facts."""
        if not (states or taken or audited):
            return self
        by_layer, by_forward = dict(self.states), dict(self.audited)
        for layer, digest in enumerate(states, first_layer):
            by_layer[layer] = {holder: digest, **by_layer.get(layer, {})}
        for x in audited:
            by_forward[_of(x)] = {holder[0]: x.digest, **by_forward.get(_of(x), {})}
        taken_so_far = {**{_of(x): x.digest for x in taken}, **self.taken}
        return replace(self, states=by_layer, taken=taken_so_far, audited=by_forward)

    def done_by(self, node: str, layers: range, order: PlanOrder | None) -> "Checks":
        """With layers of which the node has told all that it is to audit under the plan of this order."""
        under, before = self.done.get(node, (order, frozenset[int]()))
        told = before.union(layers) if under == order else frozenset(layers)
        return replace(self, done={**self.done, node: (order, told)})

    def is_done_by(self, node: str, layers: frozenset[int], order: PlanOrder) -> bool:
        """Whether the node has told all of these layers; ``order``: of the present plan."""
        under, told = self.done.get(node, (order, frozenset[int]()))
        return under in (None, order) and layers <= told

    def after_step(self, step: int, plan: Plan, proof: int = PROOF) -> "Checks":
        """The step is committed: nothing that was told of it differed. ``proof``: agreeing audits that make a row."""
        if not (self.states or self.taken or self.audited or self.in_a_row):
            return self
        passed, good = dict(self.passed), dict(self.good)
        for (p, s, _), by_auditor in self.audited.items():
            inside = s < len(plan.stages) and p < plan.pipelines
            for node in dict.fromkeys([*by_auditor, *([plan.owner_of(Duty(p, s))] if inside else [])]):
                row = passed[node] = (*passed.get(node, ()), step)[-proof:]
                if len(row) == proof:
                    good[node] = row[0]
        compared = self.compared + sum(len(said) > 1 for said in self.states.values())
        forwards = self.forwards + len(self.audited)
        told = replace(self.of_step(), in_a_row=0, passed=passed, good=good)
        return replace(told, forwards=forwards, compared=compared)

    def lasting(self) -> "Checks":
        """What a successor is to know: whom not to let in, who is in doubt, which checkpoints do not count, and how far
        back a doubt reaches at most.
        """
        return Checks(doubts=self.doubts, doubted=self.doubted, found=self.found, good=self.good)

    def of_step(self) -> "Checks":
        """Another step begins."""
        return replace(self, states={}, taken={}, audited={}, done={})

    def of_era(self, step: int) -> "Checks":
        """Another era begins at this step: of those after it nothing is known any more."""
        good = {node: min(known, step - 1) for node, known in self.good.items()}
        return replace(self.of_step(), passed={}, good=good)

    def of_another_leader(self) -> "Checks":
        """An era that another leader began, maybe after others: nobody knows here who was right in it."""
        return replace(self.of_step(), passed={}, good={})


def doubted_also(known: tuple[int, int], since: int, until: int) -> tuple[int, int]:
    """As ``Checks.doubted``, with what is doubted now. Files of an era before may lie there as far as that one came."""
    return (min(known[0], since), max(known[1], until)) if known[1] > since else (since, until)


def _of(said: Audited) -> Forward:
    return said.pipeline, said.stage, said.microbatch


def differing(
    checks: Checks, plan: Plan, tallies: Sequence[float], microbatches: int, size: int, moved: frozenset[int]
) -> Doubt | None:
    """The first thing that differs, if any does.

    tallies: of what was trained, ``size`` numbers a microbatch. moved: stages whose owner was lost within the step, so
    that nobody knows any more who has given what was taken of them.
    """
    for layer in sorted(checks.states):
        said = checks.states[layer]
        if len(set(said.values())) > 1:
            return _of_state(layer, said)
    for forward in sorted(checks.audited):
        p, s, m = forward
        by_auditor = checks.audited[forward]
        taken = checks.taken.get(forward)
        if taken is None and s == len(plan.stages) - 1:
            place = (p * microbatches + m) * size
            taken = digest_of_numbers(tallies[place : place + size]) if len(tallies) >= place + size else None
        for auditor in sorted(node for node, digest in by_auditor.items() if taken not in (None, digest)):
            owner = plan.stages[s].owners[p] if s < len(plan.stages) and s not in moved else auditor
            nodes = frozenset({owner, auditor})
            of = f"pipeline {p}, " if plan.pipelines > 1 else ""
            what = f"the forward of microbatch {m} ({of}stage {s})"
            return Doubt(what, nodes if len(nodes) > 1 else frozenset(), frozenset())
    return None


def _of_state(layer: int, said: Mapping[Holder, int]) -> Doubt:
    counts = Counter(said.values())
    digest, most = counts.most_common(1)[0]
    few = frozenset(node for (node, _), each in said.items() if each != digest) if 2 * most > len(said) else frozenset()
    return Doubt(f"the state of layer {layer}", frozenset(node for node, _ in said), few, of_state=True)


def noted(checks: Checks, doubt: Doubt) -> tuple[Checks, frozenset[str]]:
    """With a doubt on record, and who is found to compute wrongly by it and by those of before."""
    doubts = checks.doubts
    if doubt.nodes and not doubt.guilty:
        doubts = (*doubts, doubt.nodes)[-DOUBTS_KEPT:]
    guilty = doubt.guilty or _in_every(doubts)
    found = {**checks.found, **{node: checks.found.get(node, 0) + 1 for node in guilty}}
    left = tuple(nodes for nodes in doubts if not nodes & guilty)
    good = {node: step for node, step in checks.good.items() if node not in guilty}
    more = replace(checks.of_step(), in_a_row=checks.in_a_row + 1, differed=checks.differed + 1)
    return replace(more, doubts=left, found=found, good=good), guilty


def _in_every(doubts: Sequence[frozenset[str]]) -> frozenset[str]:
    """Who is in doubt with two different others, more often than any other node."""
    times = Counter(node for nodes in doubts for node in nodes)
    for node, count in times.most_common(1):
        partners = {nodes - {node} for nodes in doubts if node in nodes}
        if len(partners) > 1 and all(other == node or times[other] < count for other in times):
            return frozenset({node})
    return frozenset()


def undecided(checks: Checks) -> frozenset[str]:
    """Two nodes that have differed again and again, and nobody tells which of them is right; empty: there are none."""
    newest = checks.doubts[-MOST_OF_TWO:]
    again = checks.in_a_row >= MOST_OF_TWO == len(newest) and len(set(newest)) == 1
    return newest[-1] if again else frozenset()


def refusal(checks: Checks, node: str) -> str:
    """Why a node of this name takes no part any more, or nothing."""
    times = checks.found.get(node, 0)
    if times < MOST_LIVES:
        return ""
    return (
        f"{node} was found to compute wrongly {times} times: test its machine's memory and processor, and start the "
        "node on another machine, under another name"
    )
