"""Where an iterable dataset goes on: what nodes that read it have told, and whether they read the same."""

# Each node that takes samples reads the dataset for itself (``culm.pipeline.bookmark``). A node tells each step that it
# has read whole, before it tells that the step's work is done. So two that read other samples are found before the
# step is committed, unless one of them is lost by then; and a lost node's word is compared with its heir's.

from collections.abc import Mapping
from dataclasses import replace

from culm.coordinator.commands import Persist, Record
from culm.coordinator.decisions import Decision
from culm.coordinator.reports import Read
from culm.coordinator.state import Phase, State
from culm.pipeline.bookmark import Bookmark
from culm.pipeline.money import kinds
from culm.pipeline.reading import EXACT

KEPT = 4  # steps: that under way, the next, which a node may read ahead, and two that somebody has yet to tell of


def read(state: State, report: Read) -> Decision:
    """The first word on a step counts; another one that differs ends the run."""
    node, told = state.nodes.get(report.node), report.bookmark
    if node is None or node.incarnation != report.incarnation or state.phase not in (Phase.RUNNING, Phase.PAUSED):
        return state, ()
    known = state.bookmarks.get(told.version)
    if known is None:
        # By distance, not the newest: after a rollback those of later steps would push out what is told now.
        nearest = sorted({*state.bookmarks, told.version}, key=lambda version: abs(version - state.committed - 1))
        kept: Mapping[int, Bookmark] = {**state.bookmarks, told.version: told}
        return replace(state, bookmarks={version: kept[version] for version in nearest[:KEPT]}), ()
    if known.digest == told.digest:
        return state, ()
    step = told.version - 1
    why = (
        f"the dataset has given {report.node} other samples in step {step} than another node: data.dataset has to give "
        f"all nodes the same; {EXACT}"
    )
    failed = kinds.Failed(step=state.committed, why=why, code=1)
    return replace(state, phase=Phase.FAILED, detail=why), (Persist(), Record(failed, why))


def newest(state: State) -> Bookmark | None:
    """What the commit of the running step tells: of the step that follows, or of an earlier one."""
    known = [b for version, b in state.bookmarks.items() if version <= state.committed + 1]
    before = state.last_commit.bookmark if state.last_commit is not None else None
    return max(known, key=lambda bookmark: bookmark.version, default=before)
