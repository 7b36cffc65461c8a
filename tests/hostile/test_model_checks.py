"""Jobs that would give wrong answers that look right are refused at the start, in one line, with exit code 2."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.pytrees import MOST_CHARACTERS, MOST_TENSORS
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.stage import Stage
from tests.hostile.commands import in_process
from tests.hostile.job_files import job_text, make_job


@pytest.mark.parametrize(
    "how",
    [
        "a closure",
        "a view in a closure",
        "a buffer of the module",
        "one module",
        "a cache",
        "an array",
        "modules with one buffer",
        "modules with views",
    ],
)
def test_layers_that_share_memory_are_refused(how: str) -> None:
    """Where the job is checked, and on every node as it comes up. They were silently untied."""
    job = make_job(layers="tests.hostile.jobs:sharing", args=f'how = "{how}"')
    for refusing in (lambda: check_job(job), lambda: ModelSource(job).parameter_counts()):
        with pytest.raises(JobError) as error:
            refusing()
        assert "share" in str(error.value)
        assert "layer" in str(error.value)
        assert "\n" not in str(error.value)


def test_what_only_looks_like_sharing_is_taken() -> None:
    job = make_job(layers="tests.hostile.jobs:alone")
    check_job(job)
    assert len(ModelSource(job).parameter_counts()) == 9


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_ready_made_layers_parameter_is_refused(register: str) -> None:
    """A hook that masked a gradient was dropped by deepcopy: the run trained what the script kept as it was."""
    with pytest.raises(JobError, match=r"layer 1 \(Linear\) has a hook on its parameter weight, and copies have none"):
        check_job(make_job(layers="tests.hostile.jobs:with_hook", args=f'register = "{register}"'))


def test_a_loss_with_parameters_to_train_is_refused() -> None:
    """An optimizer of the user's script had them too; here they stayed as they began, without a word."""
    with pytest.raises(JobError, match=r"the loss has a parameter of shape \[4, 4\] .*would never be trained"):
        check_job(make_job(loss="tests.hostile.jobs:with_parameters"))
    for loss in ("with_frozen_ones", "begun_with_zero"):
        check_job(make_job(loss=f"tests.hostile.jobs:{loss}"))


def test_a_layer_with_other_values_each_time_is_refused() -> None:
    with pytest.raises(JobError, match=r"layer 0 .* different initial values each time"):
        check_job(make_job(layers="tests.hostile.jobs:drawn"))


@pytest.mark.parametrize("kind", ["detach", "argmax", "no_grad"])
def test_a_layer_that_passes_no_gradient_on_is_named(kind: str) -> None:
    """The layers before it never changed, and the run ended with exit code 0."""
    with pytest.raises(JobError, match=r"layer 1 .* passes no gradient on"):
        check_job(make_job(layers="tests.hostile.jobs:cut", args=f'kind = "{kind}"'))


def test_a_module_that_torch_cannot_copy_is_named() -> None:
    """The old weight_norm gave a traceback. As a constructor it is taken: ``tests/hostile/test_repeats.py``."""
    job = make_job(layers="tests.hostile.jobs:normed")
    for refusing in (lambda: check_job(job), lambda: ModelSource(job).build(0)):
        with pytest.raises(JobError, match=r"layer 0 \(Linear\) cannot be copied: its weight is computed") as error:
            refusing()
        assert "\n" not in str(error.value)


class Odd(nn.Linear):
    """Has a tensor of some other kind. ``where``: as a buffer, a parameter, or as its output."""

    def __init__(self, kind: str, where: str) -> None:
        super().__init__(4, 4)
        self.kind, self.where = kind, where
        if where == "buffer":
            self.register_buffer("odd", ODD[kind]())
        elif where == "parameter":
            self.odd = nn.Parameter(ODD[kind]())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).to_sparse() if self.where == "output" else super().forward(x)


ODD: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "expanded": lambda: torch.tensor(0.5).expand(4),
    "with gaps": lambda: torch.ones(4, 5)[:, :3],
    "repeating": lambda: torch.arange(8.0).unfold(0, 4, 2),
}


def odd(kind: str, where: str, made: str) -> list[Any]:
    constructor = functools.partial(Odd, kind, where)
    return [constructor() if made == "a module" else constructor, functools.partial(nn.Linear, 4, 4)]


def vectors() -> TensorDataset:
    return TensorDataset(torch.ones(20, 4), torch.zeros(20, dtype=torch.long))


def odd_job(kind: str, where: str, made: str) -> Job:
    arguments = f'kind = "{kind}", where = "{where}", made = "{made}"'
    return make_job(layers=f"{__name__}:odd", dataset=f"{__name__}:vectors", args=arguments)


@pytest.mark.parametrize("made", ["a module", "a constructor"])
@pytest.mark.parametrize(
    ("kind", "where", "words"),
    [
        ("sparse", "buffer", "keeps odd as a sparse"),
        ("sparse", "parameter", "keeps odd as a sparse"),
        ("sparse", "output", "returned a tensor that is sparse"),
        ("compressed", "buffer", "keeps odd as a sparse"),
        ("nested", "buffer", "keeps odd as a sparse, nested"),
        ("expanded", "buffer", "keeps odd expanded"),
    ],
)
def test_tensors_that_no_node_could_copy_are_named(kind: str, where: str, words: str, made: str) -> None:
    with pytest.raises(JobError, match=rf"layer 0 \(Odd\) {words}"):
        check_job(odd_job(kind, where, made))


def test_a_parameter_that_is_expanded_is_named() -> None:
    """A constructor's: no optimizer writes into it. A module's is copied, and has memory of its own then."""
    check_job(odd_job("expanded", "parameter", "a module"))
    with pytest.raises(JobError, match=r"layer 0 \(Odd\) keeps odd expanded"):
        check_job(odd_job("expanded", "parameter", "a constructor"))


@pytest.mark.parametrize("kind", ["with gaps", "repeating"])
def test_views_are_taken_as_buffers(kind: str) -> None:
    check_job(odd_job(kind, "buffer", "a module"))


class Tagged(torch.Tensor):
    pass


# What goes from stage to stage is limited; without a cut nobody would notice.
UNSENT: dict[str, Callable[[torch.Tensor], Any]] = {
    "a class of its own": lambda x: x.as_subclass(Tagged),
    "much text": lambda x: (x, "word" * MOST_CHARACTERS),
    "text beside the target's": lambda x: (x, "x" * (MOST_CHARACTERS // 2)),
    "many tensors": lambda x: [x, *(torch.zeros(1) for _ in range(MOST_TENSORS))],
}


class Wrapping(nn.Linear):
    def __init__(self, name: str) -> None:
        super().__init__(4, 4)
        self.name = name

    def forward(self, x: torch.Tensor) -> Any:
        return UNSENT[self.name](super().forward(x))


class Unwrapping(nn.Linear):
    def forward(self, x: Any) -> torch.Tensor:
        return super().forward(x if isinstance(x, torch.Tensor) else x[0])


def wrapping(name: str) -> list[nn.Module]:
    return [Wrapping(name), Unwrapping(4, 4)]


class Texts(Dataset[Any]):
    """Targets that are words beside numbers. ``text``: of each sample."""

    def __init__(self, text: str = "x" * (MOST_CHARACTERS // 6)) -> None:
        self.text = text

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return torch.ones(4), {"label": 0, "text": self.text}


def long_texts() -> Texts:
    return Texts("x" * MOST_CHARACTERS)


def tagged(samples: list[Any]) -> Any:
    return torch.stack([x for x, _ in samples]).as_subclass(Tagged), torch.stack([y for _, y in samples])


def loss_of_labels(output: torch.Tensor, target: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target["label"])


@pytest.mark.parametrize(
    ("name", "dataset", "words"),
    [
        ("a class of its own", "vectors", r"layer 0 \(Wrapping\) returned a Tagged"),
        ("much text", "vectors", r"layer 0 \(Wrapping\) returned a container of \d+ characters"),
        ("many tensors", "vectors", r"layer 0 \(Wrapping\) returned a container of 4097 tensors"),
        ("text beside the target's", "Texts", r"layer 0 \(Wrapping\), with the target beside it, returned a container"),
    ],
)
def test_an_output_that_no_other_node_could_be_given_is_named(name: str, dataset: str, words: str) -> None:
    """The run went on while no cut lay behind the layer."""
    job = make_job(layers=f"{__name__}:wrapping", dataset=f"{__name__}:{dataset}", args=f'name = "{name}"')
    if dataset == "Texts":
        job = job.model_copy(update={"train": job.train.model_copy(update={"loss": f"{__name__}:loss_of_labels"})})
    with pytest.raises(JobError, match=words):
        check_job(job)


def test_samples_that_no_other_node_could_be_given_are_named() -> None:
    job = make_job(layers="tests.hostile.jobs:legitimate", dataset=f"{__name__}:long_texts")
    with pytest.raises(JobError, match=r"a sample's target is or holds a container of \d+ characters"):
        check_job(job)
    job = make_job(dataset=f"{__name__}:vectors", data=f'collate = "{__name__}:tagged"')
    with pytest.raises(JobError, match="a sample's input is or holds a Tagged"):
        check_job(job)


def test_frozen_layers_and_layers_left_out_by_chance_are_taken() -> None:
    check_job(make_job(layers="tests.hostile.jobs:legitimate"))


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(JobError, match="nothing to train"):
        check_job(make_job(layers="tests.hostile.jobs:all_frozen"))


LOSSES = {
    "loss_without_graph": "no graph",
    "loss_of_target": "does not depend on the last layer's output",
    "integer_loss": "int64",
    "loss_by_sample": "not a single number",
    "loss_as_a_float": "is a float, not a tensor; return the tensor itself, without item",
}


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_no_loss_is_refused(name: str) -> None:
    with pytest.raises(JobError, match=LOSSES[name]) as error:
        check_job(make_job(loss=f"tests.hostile.jobs:{name}"))
    assert str(error.value).startswith("train.loss: ")


@pytest.mark.parametrize("name", ["loss_without_graph", "integer_loss", "loss_by_sample", "loss_as_a_float"])
def test_a_stage_refuses_it_too(name: str) -> None:
    """Nobody checks the job where a coordinator and nodes are started by hand."""
    job = make_job(loss=f"tests.hostile.jobs:{name}", stages=1)
    source = ModelSource(job)
    held = [HeldLayer.build(source, i, CPU) for i in range(source.layer_count)]
    stage = Stage(job, 0, held, True, True, source.loss)
    stage.begin_step(0)
    with pytest.raises(JobError, match=LOSSES[name]):
        stage.forward(0, *Microbatches(job, source.dataset()).microbatch(0, 0, 0))


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(job_text(layers="tests.hostile.jobs:sharing", args='how = "a closure"'))
    line = in_process("run", str(path), folder=tmp_path).line
    assert line.startswith("culm run: model.layers, tests.hostile.jobs:sharing: layer 0 shares its weight")
