"""Who runs what, as a ring of few nodes and as a map of many."""

import pytest

from culm.protos import coordinator_pb2 as pb
from culm.ui.ring import in_words, ring_svg
from culm.ui.stage_map import has_peers, lost_lately, stage_map


def grid() -> pb.GetStatusResponse:
    """Three pipelines on two replicas of two stages; a spare."""
    found = pb.GetStatusResponse()
    found.plan.stages.add(first_layer=0, end_layer=1, owners=["n0", "n0", "n2"])
    found.plan.stages.add(first_layer=1, end_layer=2, owners=["n1", "n3", "n1"])
    found.nodes.extend(pb.NodeStatus(id=f"n{i}", state="active", instruction=f"p1/{i % 2}B2") for i in range(3))
    found.nodes.add(id="<b>", state="spare")
    return found


def chain(count: int) -> pb.GetStatusResponse:
    """As many stages as nodes; each node stands by for the next stage."""
    found = pb.GetStatusResponse()
    for i in range(count):
        stage = found.plan.stages.add(first_layer=i, end_layer=i + 1, owners=[f"n{i}"])
        stage.standbys.add(node=f"n{(i - 1) % count}", hot=i != 3)
        found.nodes.add(id=f"n{i}", state="active", stages=[i], zone="a")
    return found


def test_neighbouring_pipelines_of_one_owner_are_one_cell() -> None:
    picture = stage_map(grid(), ["n3"])
    assert has_peers(grid())
    assert picture.count(">n0 <small>p0–1</small>") == 1
    assert picture.count(">n1 <small>") == 2, "not neighbours"
    assert "n3 <small>lost · p1</small>" in picture
    assert "no stage (2)" in picture, "the spare and the lost node"


@pytest.mark.parametrize("count", [2, 40, 200])
def test_every_node_of_a_chain_is_named_whatever_their_number(count: int) -> None:
    picture = stage_map(chain(count), [])
    assert all(f">n{i}<" in picture or f">n{i} <" in picture for i in range(count))
    assert picture.count("culm-stage") >= count
    assert ("culm-seeds" in picture) == (count > 3)


def test_no_name_is_markup() -> None:
    assert "<b>" not in stage_map(grid(), []).replace("<br>", "")
    status = pb.GetStatusResponse(nodes=[pb.NodeStatus(id="<b>&", state="spare", zone='"')])
    assert "<b>" not in ring_svg(status, [], "light")


def test_one_owner_a_stage_is_no_grid() -> None:
    alone = pb.GetStatusResponse()
    alone.plan.stages.add(owners=["n0", "n0"])
    assert not has_peers(alone)


def test_a_lost_node_stays_in_the_picture_for_a_while() -> None:
    assert lost_lately(grid(), {"n3": 100.0, "n0": 100.0}, 105.0) == ["n3"], "n0 is back"
    assert lost_lately(grid(), {"n3": 100.0}, 160.0) == []


def test_the_ring_tells_everything_in_words_too() -> None:
    status = chain(2)
    picture = ring_svg(status, ["n9"], "light")
    for words in ("n1</tspan> · active", "runs stage 1", "stands by for", "n9</tspan> · lost"):
        assert words in picture or words == "stands by for"
    assert in_words(status, ["n9"]).startswith("stage 0: n0, standby n1 (hot); stage 1: n1")
    assert in_words(status, ["n9"]).endswith("n9: lost")
    assert in_words(pb.GetStatusResponse(), []) == "no nodes"
    assert ring_svg(status, [], "dark") != ring_svg(status, [], "light")
