"""What one worker does, as transcripts that read as prose.

Accept a change on purpose with ``pytest tests/scenarios --rewrite``. ``validate`` looks at the worker after every line.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from culm.pipeline.keys import partial
from culm.pipeline.origin import Origin
from culm.pipeline.tree import Block
from tests.scenarios.worker_play import WorkerPlay
from tests.short import activation, gradient, reduced_gradient

FOLDER = Path(__file__).parent / "worker_transcripts"
RING = "n0+n2 n1+n0 n2+n1"  # three stages, each stood by for by its predecessor's owner


def begun(name: str, stages: str = RING, eager: bool = False) -> WorkerPlay:
    play = WorkerPlay(name, eager=eager)
    play.takes_plan(play.plan(1, stages), "the run begins")
    play.computes()
    return play


def own_step(play: WorkerPlay, step: int = 0) -> None:
    """All that n1 does for its own stage of a step."""
    for m in range(2):
        play.receives("n0", activation(0, m, step))
        play.computes()
    for m in range(2):
        play.receives("n2", gradient(2, m, step))
        play.computes()


def calm_step() -> WorkerPlay:
    """A middle stage: forwards as activations come, backwards as gradients do, one report, one commit."""
    play = begun("n1")
    own_step(play)
    play.receives("n2", reduced_gradient(2, 2))
    play.takes_commit(0)
    play.computes()
    return play


def seeded_standby() -> WorkerPlay:
    """n3 is to stand by for stage 1. It follows commits from the first moment, and layers come at any version."""
    play = WorkerPlay("n3")
    play.takes_plan(play.plan(2, "n0+n2 n1+n0+n3(seeding) n2+n1"), "n3 is to be seeded with stage 1")
    play.computes()
    play.receives("n1", reduced_gradient(1, 1))
    play.takes_commit(0)
    play.computes()
    play.fetched(1, 0)
    play.computes()
    play.receives("n1", reduced_gradient(1, 1, 1))
    hot = play.plan(3, "n0+n2 n1+n0+n3 n2+n1", step=2)
    play.takes_commit(1, next_plan=hot)
    play.computes()
    play.receives("n1", reduced_gradient(1, 1, 2))
    return play


def seeded_past_a_gap() -> WorkerPlay:
    """A gradient that follows the layer never comes: a later one shows it. The layer is fetched again at once, since
    the step may wait for this node.
    """
    play = WorkerPlay("n3")
    play.takes_plan(play.plan(2, "n0+n2 n1+n0+n3(seeding) n2+n1"), "n3 is to be seeded with stage 1")
    play.computes()
    play.takes_commit(0)
    play.computes()
    play.fetched(1, 0)
    play.computes()
    play.receives("n1", reduced_gradient(1, 1, 1))
    play.computes()
    play.receives("n1", reduced_gradient(1, 1, 2))
    play.fetched(1, 1)
    play.computes()
    play.takes_commit(1)
    play.computes()
    return play


def source_that_dies() -> WorkerPlay:
    """The owner cannot send a layer; its hot standby is asked, and its copy may be newer than the node itself."""
    play = WorkerPlay("n3")
    play.takes_plan(play.plan(2, "n0+n2 n1+n0+n3(seeding) n2+n1"), "n3 is to be seeded with stage 1")
    play.computes()
    play.fetch_fails("n1", 1)
    play.receives("n1", reduced_gradient(1, 1))
    play.fetched(1, 1)
    play.computes()
    play.takes_commit(0)
    play.computes()
    play.receives("n1", reduced_gradient(1, 1, 1))
    return play


def heir_in_mid_step() -> WorkerPlay:
    """n1 is lost after its first backward. n0 asks both neighbours, and does again only what they lack."""
    play = begun("n0")
    play.is_acknowledged("n1", activation(0, 0), activation(0, 1))
    play.receives("n1", gradient(1, 0))
    play.computes()
    play.takes_plan(play.plan(2, "n0+n2 n0 n2"), "n1 is lost, n0 runs stage 1 in its place")
    play.computes()
    play.hears_synced("n2")
    play.computes()
    play.receives("n2", gradient(2, 0))
    play.receives("n2", gradient(2, 1))
    play.computes()
    return play


def heir_with_the_gradient() -> WorkerPlay:
    """n1 is lost after its reduced gradient reached its standby: n0 redoes only the gradients that it needs itself."""
    play = begun("n0")
    play.receives("n1", gradient(1, 0))
    play.computes()
    play.receives("n1", reduced_gradient(1, 1))
    play.takes_plan(play.plan(2, "n0+n2 n0 n2"), "n1 is lost, n0 runs stage 1 in its place")
    play.computes()
    play.hears_synced("n2")
    play.receives("n2", gradient(2, 0))
    play.receives("n2", gradient(2, 1))
    play.computes()
    return play


def late_gradients() -> WorkerPlay:
    """Gradients of a layer that is being seeded: after the commit, again when its step is over, and a step early."""
    play = WorkerPlay("n3")
    play.takes_plan(play.plan(2, "n0+n2 n1+n0+n3(seeding) n2+n1+n3(seeding)"), "n3 is to be seeded with two stages")
    play.computes()
    play.fetched(1, 0)
    play.fetched(2, 0)
    play.computes()
    play.receives("n1", reduced_gradient(1, 1))
    play.takes_commit(0)
    play.computes()
    play.receives("n2", reduced_gradient(2, 2))
    play.computes()
    play.receives("n2", reduced_gradient(2, 2))
    play.receives("n2", reduced_gradient(2, 2, 2))
    play.receives("n2", reduced_gradient(2, 2, 1))
    return play


def broken_stream() -> WorkerPlay:
    """What the peer has not acknowledged is sent again; a repeat that was acknowledged changes nothing."""
    play = begun("n1")
    play.receives("n0", activation(0, 0))
    play.receives("n0", activation(0, 1))
    play.computes()
    play.is_acknowledged("n2", activation(1, 0))
    play.stream_breaks("n2")
    play.receives("n0", activation(0, 0))
    play.is_acknowledged("n2", activation(1, 1))
    play.stream_breaks("n2")
    return play


def stale_orders() -> WorkerPlay:
    """Who may speak: orders are taken by (term, generation), tensors from the producer of the present plan."""
    play = begun("n1")
    play.takes_plan(play.plan(3, "n0+n2 n1+n0 n2+n1"), "a later plan")
    play.takes_plan(play.plan(2, "n0+n2 n2+n0 n1+n2"), "an earlier plan, late")
    play.takes_plan(play.plan(1, RING, term=2), "another leader's")
    play.takes_plan(play.plan(4, "n0+n2 n2+n0 n1+n2"), "the first leader's, of a lower term")
    play.receives("n2", activation(0, 0))
    play.receives("n0", activation(0, 0), generation=5)
    play.takes_plan(play.plan(5, RING, term=2), "the plan that its sender obeyed")
    play.computes()
    return play


def switch() -> WorkerPlay:
    """The plan changes with a commit: stage 1 goes to n3, which was seeded, and n1 keeps nothing of it."""
    play = begun("n1", "n0+n2 n1+n0+n3(seeding) n2+n1")
    own_step(play)
    play.receives("n2", reduced_gradient(2, 2))
    play.takes_commit(0, next_plan=play.plan(2, "n0+n2 n3+n0 n2+n1", step=1))
    play.computes()
    return play


def rollback() -> WorkerPlay:
    """A stage has no copy left: a new era begins from the checkpoint that the plan names; the old one is not heard."""
    play = begun("n1")
    play.receives("n0", activation(0, 0))
    play.computes()
    origin = Origin(2, "file:///runs/step-2", "ab" * 32)
    play.takes_plan(play.plan(4, "n0+n1 n1+n0 n0+n1", era=1, step=2, origin=origin), "n2 took the last copy of stage 2")
    play.computes()
    play.receives("n0", activation(0, 1))
    play.fetched(1, 2)
    play.fetched(0, 2)
    play.fetched(2, 2)
    play.computes()
    return play


def commit_without_it() -> WorkerPlay:
    """A step is committed that this node was not counted on for: it cannot follow, and joins anew."""
    play = begun("n1")
    play.takes_commit(0)
    play.computes()
    return play


def forwards_ahead() -> WorkerPlay:
    """Eager redundancy: while it waits, a standby runs forwards ahead, and as an heir only their backwards."""
    play = begun("n0", eager=True)
    play.computes_ahead()
    play.computes_ahead()
    play.computes_ahead()
    play.takes_plan(play.plan(2, "n0+n2 n0 n2", eager=True), "n1 is lost, n0 runs stage 1 in its place")
    play.computes()
    play.hears_synced("n2")
    play.computes()
    play.receives("n2", gradient(2, 0))
    play.computes()
    return play


def peers() -> WorkerPlay:
    """n0 and n1 own the only stage, a pipeline each. n1 reduces its layer, and sends the sum to n0."""
    play = WorkerPlay("n1")
    play.takes_plan(play.plan(1, "n0/n1*"), "the run begins")
    play.computes()
    play.receives("n0", partial(0, 0, 0, 0, Block(0, 1)))
    play.computes()
    play.takes_commit(0)
    play.computes(2)
    return play


def peer_that_inherits() -> WorkerPlay:
    """n2 is lost, which ran the third pipeline. n1 asks the layer's reducer, which has that pipeline already."""
    play = WorkerPlay("n1")
    play.takes_plan(play.plan(1, "n0*/n1/n2"), "the run begins")
    play.computes()
    play.takes_plan(play.plan(2, "n0*/n1/n1"), "n2 is lost, n1 runs the third pipeline in its place")
    play.computes()
    play.hears_synced("n0", {0: frozenset([0, 1, 2])})
    play.computes()
    return play


def reducer_in_mid_step() -> WorkerPlay:
    """n2 is lost, which reduced the layer. n1 is named in its place, and waits for n0's word before it adds up."""
    play = WorkerPlay("n1")
    play.takes_plan(play.plan(1, "n0/n1/n2*"), "the run begins")
    play.computes()
    play.takes_plan(play.plan(2, "n0/n1*/n1"), "n2 is lost, n1 runs the third pipeline in its place")
    play.computes()
    play.receives("n0", partial(0, 0, 0, 0, Block(0, 1)))
    play.computes()
    play.hears_synced("n0")
    play.computes()
    return play


def reducer_that_was_too_late() -> WorkerPlay:
    """The same, but n0 has the sum that n2 had sent: that one counts."""
    play = WorkerPlay("n1")
    play.takes_plan(play.plan(1, "n0/n1/n2*"), "the run begins")
    play.computes()
    play.takes_plan(play.plan(2, "n0/n1*/n1"), "n2 is lost, n1 runs the third pipeline in its place")
    play.computes()
    play.receives("n0", partial(0, 0, 0, 0, Block(0, 1)))
    play.hears_synced("n0", reduced=(0,))
    play.computes()
    play.receives("n0", reduced_gradient(0, 0))
    return play


def layer_by_layer() -> WorkerPlay:
    """While its last backward runs n1 sends the layers that are through; the first one leaves when it is done."""
    play = WorkerPlay("n1", width=3)
    play.takes_plan(play.plan(1, "n0*/n1"), "the run begins")
    play.computes(4)
    play.begins()
    play.is_through(2)
    play.is_through(1)
    play.ends()
    play.computes()
    return play


def lost_between_layers() -> WorkerPlay:
    """n0 is lost when two layers of its pipeline have left. n1, which reduces them, runs the pipeline again for the
    third one.
    """
    play = WorkerPlay("n1", width=3)
    play.takes_plan(play.plan(1, "n0/n1*/n2"), "the run begins")
    play.computes()
    for layer in (2, 1):
        play.receives("n0", partial(0, 0, 0, layer, Block(0, 1)))
    play.takes_plan(play.plan(2, "n1*/n1/n2"), "n0 is lost, n1 runs the first pipeline in its place")
    play.computes()
    for layer in range(3):
        play.receives("n2", partial(0, 0, 0, layer, Block(2, 3)))
    play.computes()
    return play


def block_taken_apart() -> WorkerPlay:
    """A plan takes one of two pipelines while the last backward of the other runs, for which both were being merged.
    That one begins the step again.
    """
    play = WorkerPlay("n1", width=2)
    play.takes_plan(play.plan(1, "n1/n1/n0*"), "the run begins")
    play.computes(8)
    play.begins()
    play.is_through(1)
    play.takes_plan(play.plan(2, "n0*/n1/n0"), "n0 is to run the first pipeline")
    play.ends()
    play.computes()
    return play


SCENES: tuple[Callable[[], WorkerPlay], ...] = (
    calm_step,
    seeded_standby,
    seeded_past_a_gap,
    source_that_dies,
    heir_in_mid_step,
    heir_with_the_gradient,
    late_gradients,
    broken_stream,
    stale_orders,
    switch,
    rollback,
    commit_without_it,
    forwards_ahead,
    peers,
    peer_that_inherits,
    reducer_in_mid_step,
    reducer_that_was_too_late,
    layer_by_layer,
    lost_between_layers,
    block_taken_apart,
)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_transcript(scene: Callable[[], WorkerPlay], request: pytest.FixtureRequest) -> None:
    path = FOLDER / f"{scene.__name__}.txt"
    said = " ".join((scene.__doc__ or "").split())
    text = f"{said}\n\n{scene().text()}"
    if request.config.getoption("--rewrite"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_every_transcript_has_its_scene() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {scene.__name__ for scene in SCENES}
