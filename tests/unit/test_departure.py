"""A node that is to go tells its coordinator for how long its machine stays, and tells again when that changes."""

import threading

import pytest

from culm.protos import coordinator_pb2 as pb
from culm.stage_server.departure import Departure
from culm.stage_server.notices import Notice

PATIENCE = 60.0
CLOUD = "AWS will terminate this spot instance"


class Coordinator:
    """Hears what a node reports."""

    def __init__(self) -> None:
        self.attends = True
        self.heard: list[pb.AttendRequest] = []
        self.hears = threading.Event()

    def report(self, request: pb.AttendRequest) -> None:
        self.heard.append(request)
        self.hears.set()

    def absent_seconds(self) -> float:
        return 0.0 if self.attends else 100.0

    def told(self) -> list[tuple[str, float, bool]]:
        """What it has heard since the last look, but for warnings: why, seconds left, told to stop."""
        drains = [each.draining for each in self.heard if each.HasField("draining")]
        self.heard.clear()
        return [(each.why, each.seconds_left, each.told) for each in drains]


class Node:
    """A departure with a clock of its own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.coordinator = Coordinator()
        self.ended = threading.Event()
        self.departure = Departure(25.0, self.coordinator, self.ended.set, self.ended, lambda: self.now)

    def notice(self, deadline: float | None, why: str = CLOUD, certain: bool = True) -> list[tuple[str, float, bool]]:
        self.departure.noticed(Notice(why, deadline, certain))
        return self.coordinator.told()

    def repeat(self) -> list[tuple[str, float, bool]]:
        self.departure.repeat()
        return self.coordinator.told()


def test_a_repeat_tells_the_seconds_that_are_left_then() -> None:
    node = Node()
    assert node.repeat() == []
    assert node.notice(1120.0) == [(CLOUD, 120.0, False)]
    node.now = 1050.0
    assert node.repeat() == [(CLOUD, 70.0, False)]
    node.now = 1200.0
    assert node.repeat() == [(CLOUD, 1.0, False)], "0 would mean that nobody knows"


def test_a_deadline_that_moves_is_told_at_once_either_way() -> None:
    node = Node()
    node.notice(1120.0)
    assert node.notice(1060.0) == [(CLOUD, 60.0, False)]
    assert node.notice(1180.0) == [(CLOUD, 180.0, False)]
    assert node.notice(1180.0) == [], "nothing new"
    assert node.notice(None) == [(CLOUD, 0.0, False)]


def test_of_several_reasons_the_nearest_deadline_counts() -> None:
    node = Node()
    node.notice(1120.0)
    assert node.notice(1500.0, "the file /run/preempt exists") == [], "the other one is nearer"
    assert node.notice(1030.0, "the file /run/preempt exists") == [(CLOUD, 30.0, False)]
    assert node.notice(None, "a third one") == []


def test_a_notice_without_a_time_may_get_one() -> None:
    node = Node()
    assert node.notice(None) == [(CLOUD, 0.0, False)]
    assert node.notice(1040.0) == [(CLOUD, 40.0, False)]


def test_a_warning_is_repeated_and_drains_nothing() -> None:
    node = Node()
    assert node.notice(None, "AWS recommends a rebalance", certain=False) == []
    node.departure.repeat()
    (again,) = node.coordinator.heard
    assert again.warned.why == "AWS recommends a rebalance"


@pytest.mark.parametrize(("deadline", "left"), [(1120.0, 25.0), (1010.0, 10.0)])
def test_sigterm_after_a_notice_leaves_the_shorter_of_both_times(deadline: float, left: float) -> None:
    node = Node()
    node.notice(deadline)
    node.coordinator.hears.clear()
    node.departure.terminate()
    assert node.coordinator.hears.wait(PATIENCE)
    assert node.coordinator.told() == [("it was told to stop", left, True)]
    assert node.departure.told
    assert not node.ended.is_set()
    node.departure.terminate()  # a second one
    assert node.ended.is_set()


def test_sigterm_without_a_coordinator_ends_the_node() -> None:
    node = Node()
    node.coordinator.attends = False
    node.departure.terminate()
    assert node.ended.is_set()


def test_sigterm_does_not_wait_for_a_coordinator_that_goes_as_well() -> None:
    node = Node()
    node.departure.terminate()
    node.coordinator.attends = False
    assert node.ended.wait(PATIENCE)
