"""The grid of pipelines and stages as a picture."""

from culm.protos import coordinator_pb2 as pb
from culm.ui.grid import grid_svg, has_peers


def status() -> pb.GetStatusResponse:
    """Three pipelines on two replicas of two stages; a spare."""
    found = pb.GetStatusResponse()
    found.plan.stages.add(first_layer=0, end_layer=1, owners=["n0", "n0", "n2"])
    found.plan.stages.add(first_layer=1, end_layer=2, owners=["n1", "n3", "n1"])
    found.nodes.extend(pb.NodeStatus(id=f"n{i}", state="active", instruction=f"p1/{i % 2}B2") for i in range(3))
    found.nodes.add(id="<b>", state="spare")
    return found


def test_neighbouring_pipelines_of_one_owner_are_one_cell() -> None:
    picture = grid_svg(status(), {"n3": 100.0}, 105.0, "#000")
    assert has_peers(status())
    assert picture.count("n0 · ") == 1
    assert picture.count("n1 · ") == 2, "not neighbours"
    assert "n3 · lost" in picture
    assert "lost: n3" in picture


def test_no_name_is_markup() -> None:
    assert "<b>" not in grid_svg(status(), {}, 0.0, "#000")
    assert "run nothing: &amp;lt;" not in grid_svg(status(), {}, 0.0, "#000"), "escaped once"


def test_one_owner_a_stage_is_no_grid() -> None:
    alone = pb.GetStatusResponse()
    alone.plan.stages.add(owners=["n0", "n0"])
    assert not has_peers(alone)
