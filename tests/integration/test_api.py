"""Culm in Python: a script trains a job without a guard around it, and gets the plain loop's bits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import culm
from culm.examples.digits_mlp import layers
from culm.oracle.plain_loop import run_plain
from culm.pipeline.checkpoints.digest import weights_sha256

ROOT = Path(culm.__file__).resolve().parents[1]
JOB = ROOT / "examples" / "digits_mlp.toml"
SCRIPT = """
import json
import sys
import torch
import culm
from culm.examples.digits_mlp import layers

print("the script begins")
torch.manual_seed(3)
torch.set_num_threads(2)
seen = []
overrides = {"job.steps": 12, "checkpoint.url": "checkpoints", "checkpoint.every": 6}
outcome = culm.run(sys.argv[1], spares=1, overrides=overrides, on_step=lambda *told: seen.append(told))
drawn = torch.rand(1).item(), torch.get_num_threads()
model = torch.nn.Sequential(*[layer() if not isinstance(layer, torch.nn.Module) else layer for layer in layers(64, 3)])
model.load_state_dict(outcome.weights)
print(json.dumps({"drawn": drawn, "sha256": outcome.sha256, "seen": seen, "losses": outcome.losses}))
"""


def output_of(script: str, folder: Path, *words: str) -> list[str]:
    """Of a script in that folder, run from another one, which has a module of the same name as the script's."""
    (folder / "train.py").write_text(script)
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "model.py").write_text("raise SystemError('nodes look where the script does')")
    ran = subprocess.run(
        [sys.executable, str(folder / "train.py"), *words],
        cwd=folder / "elsewhere",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_a_script_gets_the_plain_loops_losses_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = JOB.read_text().replace("culm.examples.digits_mlp:layers", "model:layers")
    (tmp_path / "job.toml").write_text(named)
    (tmp_path / "model.py").write_text("from culm.examples.digits_mlp import layers\n")
    begun, told = output_of(SCRIPT, tmp_path, str(tmp_path / "job.toml"))
    assert begun == "the script begins", "no node runs the script"
    of_script = json.loads(told)
    torch.manual_seed(3)
    assert of_script["drawn"] == [torch.rand(1).item(), 2], "the script's own generator and threads are as it left them"
    plain = run_plain(culm.load_job(JOB, ["job.steps=12"]))
    assert of_script["sha256"] == plain.sha256
    assert of_script["losses"] == plain.losses
    assert of_script["seen"] == [[step, loss] for step, loss in enumerate(plain.losses)]
    monkeypatch.delitem(sys.modules, "model", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert from_the_middle(tmp_path / "elsewhere" / "checkpoints") == plain.sha256


def from_the_middle(checkpoints: Path) -> str:
    """The sha256 of the weights where a plain loop goes on from the checkpoint of step 6."""
    state = culm.plain_state(str(checkpoints), step=6)
    model = layers(64, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    for microbatches in culm.microbatches(JOB, first_step=6, overrides={"job.steps": 12}):
        for x, target in microbatches:
            loss: Any = torch.nn.functional.cross_entropy(model(x), target)
            (loss / len(microbatches)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights_sha256((i, layer.state_dict()) for i, layer in enumerate(model))


PROGRAM = """
import sys
import torch
import torch.nn.functional as F
import culm
from culm.examples.digits_mlp import dataset
from model import layers as inner

print("imported")

def layers(width):
    return inner(width, 2)

if __name__ == "__main__":
    job = culm.make_job(
        job={"steps": 6},
        model={"layers": layers, "args": {"width": 32}},
        data={"dataset": dataset, "microbatch": 16},
        train={"loss": F.cross_entropy, "optimizer": torch.optim.AdamW, "optimizer_args": {"betas": (0.9, 0.95)}},
        pipeline={"stages": 2, "microbatches": 4},
    )
    culm.save_job(job, sys.argv[1])
    print(culm.run(job).sha256)
"""


@pytest.mark.slow
def test_a_script_trains_what_it_defines_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.py").write_text("from culm.examples.digits_mlp import layers\n")
    told = output_of(PROGRAM, tmp_path, str(tmp_path / "job.toml"))
    assert told[:2] == ["imported"] * 2, "as a program, and as the nodes import it"
    monkeypatch.syspath_prepend(str(tmp_path))
    assert told[2:] == [run_plain(culm.load_job(tmp_path / "job.toml")).sha256]


@pytest.mark.slow
def test_a_script_proves_that_kills_and_shapes_change_nothing() -> None:
    changes = {"job.steps": 12, "pipeline.pipelines": 2}
    plain = run_plain(culm.load_job(JOB, [f"{key}={value}" for key, value in changes.items()]))
    killed = culm.verify(JOB, kills=1, seed=2, overrides=changes)
    assert (killed.identical, killed.difference, killed.sha256, len(killed.kills)) == (True, "", plain.sha256, 1)
    shaped = culm.verify(JOB, shapes=[(2, 1)], overrides=changes)
    assert (shaped.identical, shaped.sha256, shaped.kills) == (True, plain.sha256, ())


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"job.stepz": 3}, "overrides, job.stepz: .*did you mean steps"),
        ({"steps": 3}, "overrides: 'steps' names no key"),
        ({"pipeline.stages": 30}, "pipeline.stages: the model has .* layers, too few for 30 stages"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(overrides: dict[str, int], says: str) -> None:
    with pytest.raises(culm.JobError, match=says):
        culm.run(JOB, overrides=overrides)


def test_there_is_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        culm.trian  # noqa: B018
