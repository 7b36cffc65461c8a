"""A launcher ends no node that still writes the last checkpoint, and does not wait for one that will not come."""

from pathlib import Path

import pytest

from culm.local.last_checkpoint import FAULTY_SECONDS, STILL_SECONDS, LastCheckpoint
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"
STEPS, LAYERS = 40, 8
KEEP = "job.keep_after_done=600"
FAULT = "n1 cannot write the checkpoint"


@pytest.fixture
def last() -> LastCheckpoint:
    return LastCheckpoint(load_job(EXAMPLE, [KEEP, "checkpoint.url=memory://c", "checkpoint.every=4"]))


def status(
    *,
    phase: str = "done",
    layers: int = 0,
    fault: str = "",
    fault_step: int = STEPS,
    kept: float = 600.0,
    newest: int = 36,
) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(
        phase=phase,
        step=STEPS,
        steps=STEPS,
        checkpoint=newest,
        checkpoint_fault=fault,
        checkpoint_fault_step=fault_step if fault else 0,
        last_layers_saved=layers,
        kept_seconds=kept,
        plan=pb.Plan(stages=[pb.StagePlan(first_layer=0, end_layer=LAYERS)]),
    )


def given_up(last: LastCheckpoint, now: float, seen: pb.GetStatusResponse) -> str:
    last.look(seen, now)
    return last.given_up(seen, now)


def test_a_share_that_takes_minutes_is_waited_for(last: LastCheckpoint) -> None:
    """After a minute the nodes were ended in the middle of it, with exit code 0."""
    assert [given_up(last, now, status(layers=4, kept=600.0 - now)) for now in (0.0, 61.0, 589.0)] == [""] * 3
    assert last.in_words(status(layers=4)) == "; the last checkpoint is being written: 4 of 8 layers are written"
    assert given_up(last, 590.0, status(layers=4, kept=10.0)) == (
        "4 of 8 layers are written and [job] keep_after_done lets the nodes go 600 s after the last step: "
        "raise it, or see why the storage is slow"
    )


def test_a_coordinator_that_has_just_taken_over_lets_no_node_go(last: LastCheckpoint) -> None:
    assert given_up(last, 0.0, status(kept=0.0)) == ""
    gone = status(kept=0.0)
    gone.ClearField("plan")
    assert given_up(last, 0.0, gone).startswith("0 layers are written and [job] keep_after_done lets")


def test_a_fault_is_waited_out_for_a_moment_from_the_last_change(last: LastCheckpoint) -> None:
    faulty = status(layers=1, fault=FAULT)
    assert given_up(last, 100.0, status(layers=1)) == ""
    assert given_up(last, 200.0, faulty) == "", "it has just come"
    assert given_up(last, 200.0 + FAULTY_SECONDS, status(layers=2, fault=FAULT)) == "", "another layer is written"
    assert given_up(last, 201.0 + 2 * FAULTY_SECONDS, status(layers=2, fault=f"{FAULT} 2")) == f"{FAULT} 2"
    assert last.in_words(faulty).endswith(f"1 of 8 layers are written; {FAULT}")


def test_a_fault_of_an_earlier_checkpoint_says_nothing_of_the_last_one(last: LastCheckpoint) -> None:
    """The storage may be well again, and is not called so before a checkpoint is whole."""
    before = status(fault=FAULT, fault_step=STEPS - 4)
    assert [given_up(last, now, before) for now in (0.0, 100.0)] == ["", ""]


@pytest.mark.parametrize("job", ["a checkpoint", "none"])
def test_nothing_is_waited_for_that_is_whole_or_not_wanted(job: str, last: LastCheckpoint) -> None:
    if job == "none":
        last = LastCheckpoint(load_job(EXAMPLE, [KEEP]))
    seen = status(newest=STEPS if job == "a checkpoint" else 0, kept=0.0)
    assert (last.is_whole(seen), given_up(last, 0.0, seen), last.in_words(seen)) == (True, "", "")


def test_of_a_run_that_failed_when_it_was_trained_it_is_waited_for_while_layers_come(last: LastCheckpoint) -> None:
    assert not given_up(last, 0.0, status(phase="failed", kept=0.0))
    assert not given_up(last, STILL_SECONDS, status(phase="failed", kept=0.0, layers=3))
    assert not given_up(last, 2 * STILL_SECONDS, status(phase="failed", kept=0.0, layers=3))
    assert given_up(last, 2 * STILL_SECONDS + 1.0, status(phase="failed", kept=0.0, layers=3))
    assert last.is_whole(status(phase="failed", kept=0.0, newest=STEPS))
