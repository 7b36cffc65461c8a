"""From a checkpoint into plain PyTorch: a loop of torch alone goes on with the very bits, or the export is refused."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import culm
from culm.__main__ import main
from culm.optim import warmup_cosine
from culm.oracle.plain_loop import run_plain
from culm.pipeline.checkpoints.digest import weights_sha256
from culm.pipeline.checkpoints.layer_file import write_layer
from culm.pipeline.checkpoints.manifest import Manifest, folder_of, write_manifest
from culm.pipeline.job import Job, job_to_toml, with_values
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.model import ModelSource
from tests.unit.exactness import build_all, make_job, run_stages
from tests.unit.test_checkpoint import Unreachable

HERE = "tests.unit.test_plain_state"
STEPS, BEGUN = 6, 3
MUON = {"optimizer": "torch.optim:Muon", "lr": 0.02, "weight_decay": 0.01}
COSINE: dict[str, Any] = {"schedule": "torch.optim.lr_scheduler:CosineAnnealingLR", "schedule_args": {"T_max": STEPS}}
WARMUP: dict[str, Any] = {"schedule": "culm.optim:warmup_cosine", "schedule_args": {"warmup": 2, "steps": STEPS}}
ONE_CYCLE: dict[str, Any] = {
    "schedule": "torch.optim.lr_scheduler:OneCycleLR",
    "schedule_args": {"max_lr": [0.1, 0.2], "total_steps": STEPS},
}


class Tally(nn.Module):
    """Counts its forwards in a buffer that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, 8]
        self.seen += 1
        return x


class Counting(torch.optim.SGD):
    """Counts in its groups how many parameters it has stepped."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["dampening"] = group["dampening"] + len(group["params"]) / 100
        return super().step(closure)


def layers() -> list[Any]:
    block = partial(nn.Sequential, nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU())
    frozen = nn.Linear(8, 8).requires_grad_(False)
    return [nn.Linear(8, 8), block(), nn.ReLU(), frozen, nn.Linear(8, 8, bias=False), nn.Linear(8, 4)]


def alike() -> list[nn.Module]:
    return [nn.Linear(8, 8) for _ in range(2)]


def tied() -> list[nn.Module]:
    first, last = nn.Linear(8, 8), nn.Linear(8, 8)
    last.weight = first.weight
    return [first, nn.ReLU(), last]


def tallied() -> list[nn.Module]:
    return [Tally(), *alike()]


def by_size(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return {} if parameter.dim() > 1 else {"weight_decay": 0.0}


def muon_for_matrices(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    return MUON if parameter.dim() == 2 else {"weight_decay": 0.0} if name == "bias" else {}


def of_begun_steps(step: int) -> float:
    return [1.0, 0.5, 0.25][step]


def job_of(optimizer: str, options: str, groups: str = "", model: str = "layers", **train: Any) -> Job:
    job = make_job(2, 3, (f"torch.optim:{optimizer}" if ":" not in optimizer else optimizer, options), False, 4)
    changes: dict[str, Any] = {f"train.{key}": value for key, value in train.items()}
    changes |= {"job.steps": STEPS, "model.layers": f"{HERE}:{model}", "model.args": {}}
    return with_values(job, changes | ({"train.groups": f"{HERE}:{groups}"} if groups else {}))


def checkpoint_of(
    job: Job, folder: Path, named: Job | None = None, change: Callable[[str], str] = lambda name: name
) -> str:
    """The URL of a checkpoint after BEGUN steps, as nodes write it; ``named``: the job that it says it is of.

    ``change``: of the names of its tensors.
    """
    source = ModelSource(job)
    held = build_all(source)
    run_stages(job, held, source, range(BEGUN))
    where = folder_of(str(folder), BEGUN)
    states = {layer.index: Value(tuple((change(name), x) for name, x in layer.export().tensors)) for layer in held}
    files = {index: write_layer(where, index, state) for index, state in states.items()}
    toml = job_to_toml(named or job)
    write_manifest(where, Manifest(job="job", step=BEGUN, fingerprint="", loss=0.0, files=files, job_toml=toml))
    return str(folder)


def go_on(job: Job, step: int, model: nn.Module, steppers: list[Any]) -> list[float]:
    """The loop of the page, to the job's end."""
    losses = []
    for microbatches in culm.microbatches(job, first_step=step):
        parts = []
        for x, target in microbatches:
            loss: Any = F.cross_entropy(model(x), target)
            (loss / len(microbatches)).backward()
            parts.append(loss.item())
        for each in steppers:
            each.step()
        model.zero_grad()
        losses.append(sum(parts) / len(parts))
    return losses


def plain_groups(model: nn.Module, groups: Callable[..., dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By optimizer, as the page has it."""
    found: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        layer, _, inner = name.partition(".")
        if parameter.requires_grad:
            options = groups(int(layer), inner, parameter)
            found.setdefault(str(options), {"params": [], **options})["params"].append(parameter)
    by_name: dict[str, list[dict[str, Any]]] = {}
    for group in found.values():
        by_name.setdefault(group.pop("optimizer", ""), []).append(group)
    return by_name


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "": lambda optimizer: None,
    "cosine": partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=STEPS),
    "warmup": partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=partial(warmup_cosine, warmup=2, steps=STEPS)),
    "cycle": partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=[0.1, 0.2], total_steps=STEPS),
}


JOBS: dict[str, tuple[Job, Callable[..., Any], str]] = {
    "adamw": (job_of("AdamW", "lr = 1e-2"), partial(torch.optim.AdamW, lr=1e-2), ""),
    "sgd with a schedule": (
        job_of("SGD", "lr = 0.1, momentum = 0.9", **WARMUP),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "warmup",
    ),
    "groups, and a schedule of each": (
        job_of("AdamW", "lr = 1e-2", "by_size", **ONE_CYCLE),
        partial(torch.optim.AdamW, lr=1e-2),
        "cycle",
    ),
    "cosine": (job_of("NAdam", "lr = 1e-2", **COSINE), partial(torch.optim.NAdam, lr=1e-2), "cosine"),
}


@pytest.mark.parametrize("case", JOBS)
def test_a_plain_loop_goes_on_with_the_same_bits(case: str, tmp_path: Path) -> None:
    job, make, schedule = JOBS[case]
    assert (
        main(["checkpoint", "export", checkpoint_of(job, tmp_path / "c"), "--optimizer", "--out", f"{tmp_path}/s.pt"])
        == 0
    )
    state = torch.load(tmp_path / "s.pt")
    made = tied() if case == "tied" else layers()
    model = nn.Sequential(*made)
    own = plain_groups(model, by_size)[""] if job.train.groups else [p for p in model.parameters() if p.requires_grad]
    optimizer = make(own)
    scheduler = SCHEDULERS[schedule](optimizer)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if scheduler is not None:
        scheduler.load_state_dict(state["scheduler"])
    losses = go_on(job, state["step"], model, [optimizer, scheduler] if scheduler is not None else [optimizer])
    plain = run_plain(job)
    assert weights_sha256([(i, layer.state_dict()) for i, layer in enumerate(model)]) == plain.sha256
    assert losses == plain.losses[BEGUN:]


def test_a_tied_parameter_is_one(tmp_path: Path) -> None:
    """A plain loop adds up its uses in another order, so the bits are others from then on."""
    job = job_of("AdamW", "lr = 1e-2", model="tied")
    state = culm.plain_state(checkpoint_of(job, tmp_path))
    model = nn.Sequential(*tied())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert len(optimizer.state) == 3
    go_on(job, state["step"], model, [optimizer])
    for index, found in run_plain(job).layers:
        for name, tensor in found.items():
            torch.testing.assert_close(model.state_dict()[f"{index}.{name}"], tensor)


def test_a_checkpoint_of_a_card_is_one_of_any_machine(tmp_path: Path) -> None:
    """There AdamW counts in the host's memory."""
    job = job_of("AdamW", "lr = 1e-2")
    here = checkpoint_of(job, tmp_path / "here")
    card = checkpoint_of(
        job, tmp_path / "card", change=lambda x: re.sub(r"^optimizer\.(\d+)\.step$", r"host.\1.step", x)
    )
    states = [culm.plain_state(url)["optimizer"]["state"] for url in (here, card)]
    assert [repr(state) for state in states] == [repr(states[0])] * 2


def test_several_optimizers_go_on_each_by_itself(tmp_path: Path) -> None:
    job = job_of("AdamW", "lr = 1e-2", "muon_for_matrices", average=0.9, **COSINE)
    state = culm.plain_state(checkpoint_of(job, tmp_path))
    model = nn.Sequential(*layers())
    groups = plain_groups(model, muon_for_matrices)
    own, other = torch.optim.AdamW(groups[""], lr=1e-2), torch.optim.Muon(groups["torch.optim:Muon"])
    schedulers = [SCHEDULERS["cosine"](each) for each in (own, other)]
    model.load_state_dict(state["model"])
    theirs = state["others"]["torch.optim:Muon"]
    for optimizer, scheduler, given in zip((own, other), schedulers, (state, theirs), strict=True):
        optimizer.load_state_dict(given["optimizer"])
        scheduler.load_state_dict(given["scheduler"])
    go_on(job, state["step"], model, [own, other, *schedulers])
    assert weights_sha256([(i, layer.state_dict()) for i, layer in enumerate(model)]) == run_plain(job).sha256
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained <= state["average"].keys() <= dict(model.named_parameters()).keys()


@pytest.mark.parametrize(
    ("job", "named", "says"),
    [
        (job_of("SGD", "lr = 0.1", model="tallied"), None, "layer 0: seen has changed in training, and is in no state"),
        (
            job_of("NAdam", "lr = 0.1", precision="bf16"),
            None,
            "train.optimizer: load_state_dict would make torch.bfloat16 of its mu_product, which is torch.float32",
        ),
        (job_of(f"{HERE}:Counting", "lr = 0.1", model="layers"), None, "dampening is 0.06 for layer 0 and 0.12 for"),
        (
            job_of(
                "AdamW",
                "lr = 0.1",
                "muon_for_matrices",
                schedule="torch.optim.lr_scheduler:OneCycleLR",
                schedule_args={"max_lr": [0.1, 0.2, 0.3], "total_steps": STEPS, "cycle_momentum": False},
            ),
            None,
            "train.schedule: OneCycleLR raised .*; a schedule of several optimizers has to be the same for each",
        ),
        (
            job_of("AdamW", "lr = 0.1", "by_size"),
            job_of("AdamW", "lr = 0.1"),
            r"layer 0: the job's code as it is now has not the state of the training \(group\.1\.",
        ),
        (job_of("SGD", "lr = 0.1"), job_of("SGD", "lr = 0.1", model="alike"), "has 2 layers now, and the checkpoint 6"),
    ],
)
def test_what_would_go_on_otherwise_is_refused(job: Job, named: Job | None, says: str, tmp_path: Path) -> None:
    url = checkpoint_of(job, tmp_path, named)
    with pytest.raises(culm.JobError, match=says) as refused:
        culm.plain_state(url)
    assert "\n" not in str(refused.value)


def test_a_schedule_of_just_so_many_steps_has_nothing_to_go_on_with_at_the_end(tmp_path: Path) -> None:
    """The reason said that the job had more steps."""
    job = with_values(job_of("SGD", "lr = 0.1", schedule=f"{HERE}:of_begun_steps"), {"job.steps": BEGUN})
    says = r"what follows step 2 raised IndexError: .*; the job ends there: take the weights alone, or an earlier"
    with pytest.raises(culm.JobError, match=says):
        culm.plain_state(checkpoint_of(job, tmp_path))


def test_which_checkpoint_and_how_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = checkpoint_of(job_of("SGD", "lr = 0.1"), tmp_path / "c")
    with pytest.raises(culm.JobError, match="no checkpoint of step 7; choose one of the steps that are there: 3"):
        culm.plain_state(url, step=7)
    assert main(["checkpoint", "export", url, "--optimizer", "--hf", str(tmp_path / "hf")]) == 2
    assert "a Hugging Face folder holds no optimizer; export one file with --out" in capsys.readouterr().err
    assert main(["checkpoint", "export", url, "--optimizer", "--average", "--out", str(tmp_path / "s")]) == 2
    for words in (["--out", "w.pt"], ["--out", "w.safetensors", "--optimizer"]):  # each would be the other's format
        assert main(["checkpoint", "export", url, *words]) == 2
        assert f"--out {words[1]}: is named as" in capsys.readouterr().err
    with pytest.raises(culm.JobError, match="there is no checkpoint; nothing is there: check the address"):
        culm.plain_state(str(tmp_path / "nowhere"))
    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    with pytest.raises(culm.JobError, match=r"the storage cannot be read .*; check the address, the network"):
        culm.plain_state("unreachable://bucket")
    next(Path(url).rglob("layer-00000.optimizer.safetensors")).write_bytes(b"torn")
    with pytest.raises(culm.JobError, match=r"layer-00000.optimizer.safetensors .*take the one before, by its step"):
        culm.plain_state(url)


def test_the_microbatches_of_a_step_leave_the_scripts_generators_alone() -> None:
    job = job_of("SGD", "lr = 0.1")
    torch.manual_seed(3)
    steps = list(culm.microbatches(job, first_step=4, overrides={"data.dataset": "tests.unit.exactness:Augmented"}))
    drawn = torch.rand(1)
    assert [len(microbatches) for microbatches in steps] == [3, 3]
    again = list(culm.microbatches(job, first_step=5, overrides={"data.dataset": "tests.unit.exactness:Augmented"}))
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(steps[1], again[0], strict=True))
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
    with pytest.raises(culm.JobError, match="first_step: there is no step -1; count steps from 0"):
        culm.microbatches(job, first_step=-1)
