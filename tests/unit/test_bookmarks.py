"""What commits tell of an iterable dataset, and what ends a run over one."""

from dataclasses import replace

import pytest

from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.bookmarks import KEPT
from culm.coordinator.decide import advance
from culm.coordinator.report_bounds import problem
from culm.pipeline.bookmark import MOST_BYTES, Bookmark
from culm.pipeline.plan_codec import commit_from_text, commit_to_text
from culm.protos import coordinator_pb2 as pb
from tests.scenarios.coordinator_play import CoordinatorPlay, three_nodes


def bookmark(version: int, digest: str = "") -> Bookmark:
    return Bookmark(version=version, of="job", digest=digest or f"d{version}", state=b"state")


def tell(play: CoordinatorPlay, node: str, told: Bookmark, incarnation: int | None = None) -> None:
    number = play.incarnations[node] if incarnation is None else incarnation
    play.state, _ = advance(play.state, reports.Read(node, number, told), play.now)


def phase(play: CoordinatorPlay) -> co.Phase:
    return play.state.phase


def commit(play: CoordinatorPlay) -> Bookmark | None:
    play.ready("n0", "n1", "n2")
    assert play.state.last_commit is not None
    return play.state.last_commit.bookmark


def test_a_commit_tells_the_newest_bookmark_that_is_known() -> None:
    play = three_nodes()
    assert commit(play) is None, "a map-style dataset has none"
    tell(play, "n0", bookmark(2))
    tell(play, "n2", bookmark(2))
    tell(play, "n0", bookmark(3))  # it reads ahead
    assert commit(play) == bookmark(2)
    assert commit(play) == bookmark(3)
    assert commit(play) == bookmark(3), "nobody has told of step 3, so the one before it is of use"


def test_after_a_rollback_what_is_told_then_counts() -> None:
    play = three_nodes()
    later = {version: bookmark(version) for version in range(20, 20 + KEPT)}
    play.state = replace(play.state, bookmarks=later)
    tell(play, "n0", bookmark(1))
    assert commit(play) == bookmark(1)
    assert len(play.state.bookmarks) == KEPT


def test_a_commit_keeps_its_bookmark_in_the_store() -> None:
    play = three_nodes()
    tell(play, "n0", bookmark(1))
    commit(play)
    assert play.state.last_commit is not None
    assert commit_from_text(commit_to_text(play.state.last_commit)) == play.state.last_commit
    plain = replace(play.state.last_commit, bookmark=None)
    assert commit_from_text(commit_to_text(plain)) == plain


@pytest.mark.parametrize("late", [False, True])
def test_other_samples_end_the_run(late: bool) -> None:
    """Also of a step that is committed: a node that takes no sample of the last pipeline comes to its end later."""
    play = three_nodes()
    tell(play, "n0", bookmark(1))
    if late:
        commit(play)
    tell(play, "n2", bookmark(1, "another"), incarnation=17)
    assert phase(play) is co.Phase.RUNNING, "of a process that is gone nothing counts"
    tell(play, "n2", bookmark(1, "another"))
    assert phase(play) is co.Phase.FAILED
    assert "given n2 other samples in step 0 than another node: data.dataset has to give all" in play.state.detail


def test_few_are_kept() -> None:
    play = three_nodes(steps=50)
    for version in range(1, 20):
        tell(play, "n0", bookmark(version))
    assert sorted(play.state.bookmarks) == list(range(1, 1 + KEPT)), "those about the running step"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (pb.Bookmark(version=0), "it has a bookmark of step 0; steps 1 to 4 can have one"),
        (pb.Bookmark(version=5), "it has a bookmark of step 5; steps 1 to 4 can have one"),
        (pb.Bookmark(version=1, state=b"x" * (MOST_BYTES + 1)), "its bookmark has 65537 bytes; up to 65536"),
        (pb.Bookmark(version=1, digest="x" * 65), "a bookmark's hash has 65 characters; 64 at most"),
        (pb.Bookmark(version=4, digest="x" * 64, state=b"x" * MOST_BYTES), ""),
    ],
)
def test_what_no_dataset_has_is_refused(told: pb.Bookmark, said: str) -> None:
    found = problem(three_nodes().state, pb.AttendRequest(read=told))
    assert found.startswith(said) if said else not found
