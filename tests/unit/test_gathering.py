"""The final weights of a run whose nodes have gone come from its own last checkpoint, and from no other (rule 17)."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from culm.coordinator.decide import begin
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.event_log import EventLog
from culm.coordinator.edges.run_status import RunStatus
from culm.coordinator.edges.store import MemoryStore
from culm.coordinator.state import Phase
from culm.local.gathering import gather
from culm.pipeline.checkpoints.layer_file import write_layer
from culm.pipeline.checkpoints.manifest import Manifest, folder_of, write_manifest
from culm.pipeline.job import load_job
from culm.pipeline.origin import Origin
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import RunFailed

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 4


class Answers:
    """A coordinator that has let its nodes go."""

    def __init__(self, checkpoint: Origin) -> None:
        settings = CoordinatorSettings(job=load_job(EXAMPLES / "digits_mlp.toml", [f"job.steps={STEPS}"]))
        state = replace(begin(settings.decisions()), phase=Phase.DONE, committed=STEPS, checkpoints=(checkpoint,))
        self._status = RunStatus(settings).response(state, EventLog(MemoryStore(), 1, time.time), 0.0, 0.0)

    def GetStatus(self, request: pb.GetStatusRequest, timeout: float) -> pb.GetStatusResponse:  # noqa: N802
        return self._status


def written(url: Path, number: float) -> Origin:
    folder = folder_of(f"file://{url}", STEPS)
    files = {0: write_layer(folder, 0, Value((("parameter.weight", torch.full((3,), number)),)))}
    return write_manifest(folder, Manifest(job="job", step=STEPS, fingerprint="code", loss=0.5, files=files))


def weights(checkpoint: Origin) -> list[float]:
    ((_, state),) = gather(Answers(checkpoint), lambda: None)  # type: ignore[arg-type]
    return list(state["weight"].tolist())


def test_the_weights_are_those_of_the_last_checkpoint(tmp_path: Path) -> None:
    assert weights(written(tmp_path, 1.0)) == [1.0] * 3


@pytest.mark.parametrize("there", ["another run's checkpoint", "nothing"])
def test_another_checkpoint_in_its_place_is_refused(there: str, tmp_path: Path) -> None:
    """Another run that wrote there since, or another machine's folder: its weights were given as this run's."""
    last = written(tmp_path / "here", 1.0)
    if there == "nothing":
        last = replace(last, folder=folder_of(f"file://{tmp_path}/elsewhere", STEPS))
    else:
        written(tmp_path / "here", 2.0)
    with pytest.raises(RunFailed, match=r"does not see the run's last checkpoint: .*manifest\.json"):
        weights(last)
