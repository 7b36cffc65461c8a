"""What a node measures of the job's layers, and what it leaves as it was."""

from culm.pipeline.checkpoints.digest import hash_layer
from culm.pipeline.job import Job, parse_job
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.sharing import tensors_of
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.availability import availability
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer_times import measured
from tests.hostile.job_files import job_text
from tests.hostile.jobs import CLASSES, WIDTH


def job_of(layers: str = "tests.hostile.jobs:blocks") -> Job:
    return parse_job(job_text(layers=layers))


def hashes(source: ModelSource) -> list[str]:
    return [hash_layer(i, dict(tensors_of(source.build(i)))) for i in range(source.layer_count)]


def test_every_layer_has_a_time() -> None:
    job = job_of()
    found, why = measured(job, ModelSource(job), CPU)
    assert len(found) == 4
    assert min(layer.seconds for layer in found) > 0.0
    assert why == ""


def test_an_output_counts_with_the_gradient_that_comes_back() -> None:
    job = job_of()
    found, _ = measured(job, ModelSource(job), CPU)
    of_floats = 4 * job.data.microbatch
    target = 8 * job.data.microbatch  # the number of a class each
    found_bytes = [layer.boundary - target for layer in found]
    assert found_bytes == [2 * of_floats * width for width in (WIDTH, WIDTH, WIDTH, CLASSES)]


def test_measuring_changes_no_layer() -> None:
    """Also not the buffers of a BatchNorm that is a module in the list, which forwards change."""
    job = job_of("tests.hostile.jobs:ready_made")
    source = ModelSource(job)
    before = hashes(source)
    assert measured(job, source, CPU)[0]
    assert hashes(source) == before


def test_a_layer_may_write_into_its_input() -> None:
    job = job_of("tests.hostile.jobs:in_place")
    assert len(measured(job, ModelSource(job), CPU)[0]) == 4


def test_a_layer_that_raises_is_named_and_no_time_is_told() -> None:
    job = job_of("tests.hostile.jobs:misfit_inside")
    found, why = measured(job, ModelSource(job), CPU)
    assert found == ()
    assert "layer 1 (Linear) raised RuntimeError" in why


def test_only_who_is_asked_measures() -> None:
    job = job_of()
    source = ModelSource(job)
    calm = availability(job, source, CPU, pb.Welcome())
    assert (len(calm.layer_seconds), len(calm.layer_boundary_bytes)) == (0, 0)
    asked = availability(job, source, CPU, pb.Welcome(measure=True))
    assert (len(asked.layer_seconds), len(asked.layer_boundary_bytes)) == (4, 4)
