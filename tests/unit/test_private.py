"""The private parts of torch and Python that Culm stands on are still as it knows them."""

import inspect
import tomllib
from importlib import metadata
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import torch
from transformers.utils.import_utils import is_tracing

from culm.models.private import without_memory
from culm.stage_server.compute import torch_private

ROOT = Path(__file__).parents[2]


def test_pythons_forkserver_keeps_its_process_and_its_file_where_culm_looks() -> None:
    server = forkserver.ForkServer()
    assert server._forkserver_pid is None  # type: ignore[attr-defined]
    assert server._forkserver_alive_fd is None  # type: ignore[attr-defined]
    assert isinstance(forkserver._forkserver, forkserver.ForkServer)
    assert resource_tracker.ResourceTracker()._fd is None  # type: ignore[attr-defined]
    assert isinstance(resource_tracker._resource_tracker, resource_tracker.ResourceTracker)


def test_torch_splits_a_backward_as_culm_calls_it() -> None:
    first_half = torch_private.first_half()
    assert list(inspect.signature(first_half).parameters) == [
        "stage_outputs_or_loss",
        "output_grads",
        "input_values",
        "weights",
    ]
    x, weight = torch.ones(1, 2, requires_grad=True), torch.nn.Parameter(torch.ones(2, 2))
    made, (group,) = first_half([x @ weight], [torch.ones(1, 2)], [x], iter([weight]))
    assert [tensor.tolist() for tensor in made] == [[[2.0, 2.0]]]
    assert [node.variable for node in group["params"]] == [weight]
    ((gradient,),) = group["grads"]
    assert [node.name() for node in group["intermediates"]] == ["MmBackward0"]
    assert gradient.tolist() == [[1.0, 1.0]]


def test_torch_tells_a_view() -> None:
    whole = torch.zeros(4)
    assert torch_private.is_view(whole[:2])
    assert not torch_private.is_view(whole)


def test_torch_makes_tensors_without_memory_that_code_may_look_at() -> None:
    with without_memory():
        x = torch.zeros(1 << 20, 1 << 20)
        assert (x @ x).shape == x.shape
        assert is_tracing(x), "transformers asks this before it looks at values"


def test_no_newer_torch_is_taken_than_the_one_that_was_tried() -> None:
    """Its private parts may be others in the next one."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (bound,) = [line.partition("<")[2] for line in wanted if line.startswith("torch>")]
    tried = metadata.version("torch").partition("+")[0].split(".")
    assert bound == f"{tried[0]}.{int(tried[1]) + 1}"
