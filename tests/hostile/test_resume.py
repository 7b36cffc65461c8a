"""A run that goes on from a checkpoint of a job that would give other bits is refused by name, or takes what is new."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.checkpoints.digest import weights_sha256
from culm.pipeline.checkpoints.manifest import find_checkpoints, read_manifest, write_manifest
from culm.pipeline.clip import clip_scale
from culm.pipeline.identity import identity_from, identity_to
from culm.pipeline.identity_parts import parse_allowed
from culm.pipeline.job import Job
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.streams import seed_all, stream_seed
from culm.terminal.outcome import Outcome
from tests.hostile.commands import in_process
from tests.hostile.job_files import ENVIRONMENT, ROOT, job_text, make_job

STEPS = 4  # of the run that writes the checkpoint


def cluster(job: Job, folder: Path, **settings: Any) -> Outcome:
    nodes = job.pipeline.stages
    with LocalCluster(job, ROOT, nodes, folder=folder, patience=20.0, **settings) as running:
        return train(running, lambda *_: None)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checkpoint of step 4."""
    folder = tmp_path_factory.mktemp("checkpoint")
    found = f"file://{folder}/checkpoints"
    cluster(make_job(steps=STEPS, more=f'[checkpoint]\nurl = "{found}"\nevery = {STEPS}'), folder / "run")
    return found


def said(command: str, job: Path, url: str, more: list[str]) -> str:
    words = [*command.split(), str(job), "--resume", url, *more]
    done = in_process(*words, folder=job.parent, **ENVIRONMENT)
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    return done.err.strip().splitlines()[-1]


CHANGED: dict[str, tuple[dict[str, Any], str, str]] = {
    "rate": ({"optimizer_args": "lr = 0.02"}, "train.optimizer_args.lr is 0.02 in this job, and 0.01", "--allow train"),
    "optimizer": ({"optimizer": "torch.optim:NAdam"}, "train.optimizer is 'torch.optim:NAdam'", "--allow train"),
    "option": ({"optimizer_args": "lr = 0.01, eps = 0.1"}, "eps is 0.1 in this job, and missing", "train"),
    "clip": ({"train": "clip_norm = 1.0"}, "train.clip_norm is 1.0 in this job, and missing", "--allow train"),
    "seed": ({"text": ("seed = 1", "seed = 2")}, "job.seed is 2 in this job, and 1", "--allow train"),
    "batch": ({"text": ("microbatch = 4", "microbatch = 8")}, "microbatch is 8 in this job, and 4", "--allow data"),
    "microbatches": ({"text": ("microbatches = 2", "microbatches = 3")}, "pipeline.microbatches is 3", "--allow data"),
    "data": ({"dataset": "tests.hostile.jobs:poisoned"}, "data.dataset is", "--allow data"),
    "threads": ({"job": "threads = 2"}, "job.threads is 2 in this job, and 1", "--allow hardware"),
    "layers": ({"args": "count = 2"}, "model.args.count is 2 in this job, and missing", "--allow model"),
    "two": ({"optimizer_args": "lr = 1.0", "dataset": "tests.hostile.jobs:poisoned"}, "data.dataset", "data,train"),
    "fewer steps": ({"steps": STEPS}, "the checkpoint is of step 4, and the job has 4 steps", "job.steps"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_differs_is_refused_by_name(change: str, url: str, tmp_path: Path) -> None:
    """Before, all of these trained on: with the old rate, with other samples, or on layers of another meaning."""
    settings, words, mend = CHANGED[change]
    settings = dict(settings)
    old, new = settings.pop("text", ("", ""))
    path = tmp_path / "job.toml"
    path.write_text(job_text(**{"steps": 8, **settings}).replace(old, new))
    line = said("coordinator --listen 127.0.0.1:0 --job", path, url, [])
    assert line.startswith(f"culm coordinator: --resume {url}")
    assert words in line
    assert mend in line


@pytest.mark.slow
def test_layers_that_do_not_fit_are_refused_even_where_the_model_may_differ(url: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(job_text(steps=8, args="count = 2"))
    line = said("run", path, url, ["--allow", "model"])
    assert "the model has 3 layers on n" in line
    assert "but 4 where the checkpoint was made" in line


@pytest.mark.slow
def test_other_code_is_refused_by_name(url: str, tmp_path: Path) -> None:
    """What no job file tells: the first node to join does."""
    (found,) = find_checkpoints(url)
    manifest = read_manifest(found.url)
    other = f"file://{tmp_path}/other/step-00000004"
    subprocess.run(["cp", "-r", found.url.removeprefix("file://"), tmp_path], check=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "step-00000004").rename(tmp_path / "other/step-00000004")
    content = identity_to(manifest.identity)
    content["parts"]["code"] = "0" * 64
    changed = {**manifest.__dict__, "identity": identity_from(content)}
    write_manifest(other, type(manifest)(**changed))
    path = tmp_path / "job.toml"
    path.write_text(job_text(steps=8))
    line = said("run", path, f"file://{tmp_path}/other", [])
    assert "runs other code for this job than where the checkpoint was made" in line
    assert "--allow code" in line
    outcome = cluster(make_job(steps=8), tmp_path / "run", resume=f"file://{tmp_path}/other", allow="code")
    assert outcome.sha256 == run_plain(make_job(steps=8)).sha256


def test_a_damaged_newest_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    """The coordinator reads manifests alone; the nodes see that a file has other bytes."""
    url = f"file://{tmp_path}/c"
    cluster(make_job(steps=STEPS, more=f'[checkpoint]\nurl = "{url}"\nevery = 2'), tmp_path / "before")
    (torn,) = (tmp_path / "c/step-00000004").glob("layer-00001.safetensors")
    data = torn.read_bytes()
    torn.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    outcome = cluster(make_job(steps=8), tmp_path / "run", resume=url)
    assert outcome.sha256 == run_plain(make_job(steps=8)).sha256
    torn.write_bytes(data)
    alone = cluster(make_job(steps=8), tmp_path / "alone", resume=f"{url}/step-00000002")
    assert alone.sha256 == outcome.sha256
    assert alone.first_step == 2


def test_what_changes_no_bit_may_differ(url: str, tmp_path: Path) -> None:
    """More steps, other stages, resilience, schedule and checkpoints."""
    more = f'lead = 1\n[resilience]\nredundancy = "eager"\n[checkpoint]\nurl = "file://{tmp_path}/c"\nevery = 3'
    job = make_job(steps=8, stages=3, more=more)
    outcome = cluster(job, tmp_path / "run", resume=url)
    assert outcome.first_step == STEPS
    assert outcome.sha256 == run_plain(make_job(steps=8)).sha256


def by_hand(before: Job, after: Job, options: dict[str, Any] | None) -> str:
    """The plain loop of one job and then of the other, on the same weights; the optimizer's state goes on with other
    options, or is that of a new optimizer.
    """
    torch.set_num_threads(1)
    model = [ModelSource(before).build(i) for i in range(4)]
    optimizer = ModelSource(before).optimizer([p for layer in model for p in layer.parameters()])
    for job, steps in ((before, range(before.job.steps)), (after, range(before.job.steps, after.job.steps))):
        source = ModelSource(job)
        data = Microbatches(job, source.dataset())
        if job is after and options is None:
            optimizer = source.optimizer([p for layer in model for p in layer.parameters()])
        elif job is after:
            optimizer.param_groups[0].update(options or {})
        for step in steps:
            optimizer.zero_grad()
            for m in range(job.pipeline.microbatches):
                x, target = data.microbatch(step, 0, m)
                for i, layer in enumerate(model):
                    seed_all(stream_seed(job.job.seed, step, 0, m, i))
                    x = layer(x)
                (source.loss(x, target) / job.pipeline.microbatches).backward()
            assert clip_scale([], job.train.clip_norm) == 1.0
            optimizer.step()
    return weights_sha256([(i, layer.state_dict()) for i, layer in enumerate(model)])


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"optimizer_args": "lr = 0.002, betas = [0.8, 0.99]"}, {"lr": 0.002, "betas": [0.8, 0.99]}),
        ({"optimizer": "torch.optim:SGD", "optimizer_args": "lr = 0.01, momentum = 0.9"}, None),
    ],
    ids=["options", "optimizer"],
)
def test_what_is_allowed_takes_effect(
    settings: dict[str, Any], options: dict[str, Any] | None, url: str, tmp_path: Path
) -> None:
    """The checkpoint's state under the job's options; another optimizer begins anew.."""
    job = make_job(steps=8, **settings)
    outcome = cluster(job, tmp_path / "run", resume=url, allow="train")
    assert outcome.sha256 == by_hand(make_job(steps=STEPS), job, options)


def test_what_may_differ_is_named_by_its_parts(tmp_path: Path) -> None:
    assert parse_allowed("train, data,") == {"train", "data"}
    path = tmp_path / "job.toml"
    path.write_text(job_text())
    line = said("run", path, "file:///nowhere", ["--allow", "learning"])
    assert line.startswith("culm run: --allow: 'learning' does not name parts of a run; ")
    assert "model,data,train,code,versions,hardware" in line
