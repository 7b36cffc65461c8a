"""A job without code for its model: it loses nodes, has the plain loop's bits, and transformers loads its weights."""

from pathlib import Path

import pytest
import torch
import transformers

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
from tests.hostile.commands import as_process

ROOT = Path(__file__).parents[2]
STEPS = 6


@pytest.mark.slow
def test_a_model_of_hugging_face_from_its_name_to_a_folder_of_its_own(tmp_path: Path) -> None:
    changes = [f"job.steps={STEPS}", f"checkpoint.url={tmp_path}/ck", "checkpoint.every=3", "model.args.n_layer=3"]
    job = load_job(ROOT / "examples" / "gpt2.toml", changes)
    kills = [Kill("n1", 1, "1B1"), Kill("n2", 3, "2F2")]
    with LocalCluster(job, ROOT / "examples", 4, kills, folder=tmp_path / "run") as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    plain = run_plain(job)
    assert outcome.sha256 == plain.sha256
    done = as_process("checkpoint", "export", f"{tmp_path}/ck", "--hf", "model", folder=tmp_path)
    assert done.code == 0, done.err
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    own = model.state_dict()
    for _, state in plain.layers:
        for name, tensor in state.items():
            assert torch.equal(own[name.removeprefix("model.")], tensor)
