"""The job file is edited while the run goes on, and its coordinator starts again: nothing is computed by two jobs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import Job, job_to_toml, load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.outcome import RunFailed
from tests.hostile.test_redis_memory import EXAMPLES, Amnesia

STEPS = 200
EDITED = "train.clip_norm=0.01"  # counts at the coordinator alone
NAMED = "train.clip_norm is 0.01"


def job_with(*changes: str) -> Job:
    return load_job(EXAMPLES / "digits_mlp.toml", [f"job.steps={STEPS}", "pipeline.stages=2", *changes])


class Editor:
    """Does one thing after the other, each once its condition holds."""

    def __init__(self, *acts: tuple[Callable[[pb.GetStatusResponse], bool], Callable[[], None]]) -> None:
        self._acts = list(acts)

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if self._acts and self._acts[0][0](status):
            self._acts.pop(0)[1]()

    @property
    def is_done(self) -> bool:
        return not self._acts


def write(cluster: LocalCluster, job: Job) -> None:
    (cluster.folder / "job.toml").write_text(job_to_toml(job))


NO_BIT = "pipeline.lead=1"  # changes no bit; but every node refuses the coordinator's job


@pytest.mark.parametrize(
    ("edited", "named"),
    [
        (EDITED, f"{NAMED} in this job, and missing in the run's; set it back"),
        (NO_BIT, "pipeline.lead is 1, and was 2 in the run's job; set it back"),
    ],
)
def test_a_run_goes_on_with_its_own_job_alone(tmp_path: Path, edited: str, named: str) -> None:
    with LocalCluster(job_with(), EXAMPLES, 2, folder=tmp_path / "run", patience=20.0) as cluster:

        def edit() -> None:
            write(cluster, job_with(edited))
            cluster.kill("coordinator")

        with pytest.raises(RunFailed) as failed:
            train(cluster, lambda *_: None, Editor((lambda status: status.step >= 40, edit)))
        assert failed.value.code == 2
        assert named in str(failed.value)

        write(cluster, job_with())
        cluster._start_coordinator([cluster.address])
        outcome = train(cluster, lambda *_: None)
        assert cluster.deaths == []
    assert outcome.sha256 == run_plain(job_with()).sha256


def test_nodes_keep_what_they_hold_from_a_coordinator_of_another_job(tmp_path: Path) -> None:
    """Redis has forgotten the run: only its nodes know by which job it was computed."""
    with LocalCluster(job_with(), EXAMPLES, 2, folder=tmp_path / "run", patience=20.0) as cluster:

        def edit() -> None:
            write(cluster, job_with(EDITED))
            cluster.kill("coordinator")
            Amnesia(cluster, tmp_path, older=False).lose()

        def both_refused(status: pb.GetStatusResponse) -> bool:
            return all(NAMED in (cluster.folder / f"{name}.log").read_text() for name in cluster.names)

        def set_back() -> None:
            write(cluster, job_with())
            cluster.kill("coordinator")

        editor = Editor((lambda status: status.step >= 40, edit), (both_refused, set_back))
        outcome = train(cluster, lambda *_: None, editor)
        assert cluster.deaths == []
    assert editor.is_done
    assert outcome.sha256 == run_plain(job_with()).sha256
