"""Each row: two pipelines of two stages, four nodes, two of them killed; the weights are those of the plain loop.

With CULM_DEVICE=cuda all four compute on this machine's card.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import Job, load_job, parse_job, with_values
from culm.pipeline.user_code.check import check_job
from tests.models.small import settings_of
from tests.unit.test_encoder_decoder import as_whole, built, same_bits_as_whole, tied_in

ROOT = Path(__file__).parents[2]
DEVICE = os.environ.get("CULM_DEVICE", "cpu")
STEPS, NODES = 10, 4
KILLED_IN = (2, 6)  # steps
WAYS = ["forward", "backward", "send", "ready", "commit"]
JOB = """
[job]
name = "{name}"
steps = {steps}
seed = {seed}
[model]
layers = "{layers}"
[data]
dataset = "{dataset}"
microbatch = 2
shuffle = true
[train]
loss = "{loss}"
optimizer = "torch.optim:AdamW"
optimizer_args = {{ lr = 1e-3 }}
clip_norm = 1.0
[pipeline]
stages = 2
pipelines = 2
microbatches = 2
"""
DECODERS = [
    "arcee",
    "biogpt",
    "bitnet",
    "bloom",
    "codegen",
    "cohere",
    "cohere2",
    "ctrl",
    "diffllama",
    "doge",
    "ernie4_5",
    "exaone4",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "granitemoe",
    "helium",
    "hunyuan_v1_dense",
    "lfm2",
    "llama",
    "ministral",
    "mistral",
    "mixtral",
    "mpt",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
    "vaultgemma",
    "xglm",
]
ENCODERS = ["bert", "roberta", "camembert", "electra"]
BOTH = ["t5", "bart", "mt5", "umt5", "longt5", "mbart", "pegasus", "marian", "m2m_100", "blenderbot", "plbart", "mvp"]


def job_of(name: str, seed: int, layers: str, dataset: str, loss: str, args: dict[str, Any]) -> Job:
    job = parse_job(JOB.format(name=name, steps=STEPS, seed=seed, layers=layers, dataset=dataset, loss=loss))
    return job.model_copy(update={"model": job.model.model_copy(update={"args": args})})


def survives_and_ends_exact(job: Job, folder: Path) -> None:
    job = with_values(job, {"job.device": DEVICE})
    check_job(job)
    draw = random.Random(job.job.seed)
    # All four own a stage at the first one, and the other three at the second.
    kills = [
        Kill(f"n{node}", step, draw.choice(WAYS))
        for node, step in zip(draw.sample(range(4), 2), KILLED_IN, strict=True)
    ]
    with LocalCluster(job, ROOT, NODES, kills, folder=folder) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    # As the coordinator saw it: a small model's run may be over before the launcher looks at its processes again.
    assert sorted(lost["node"] for lost in outcome.losses_of_nodes) == sorted(kill.node for kill in kills)
    assert outcome.sha256 == run_plain(job).sha256


def hugging_face(architecture: str, seed: int, loss: str, samples: str = "Lines", **args: Any) -> Job:
    args = {"model": architecture, **settings_of(architecture, {}), **args}  # with the architecture's own ties
    return job_of(
        architecture, seed, "culm.models.hf:layers", f"tests.models.small:{samples}", f"culm.models.hf:{loss}", args
    )


@pytest.mark.parametrize("architecture", DECODERS)
def test_a_decoder(architecture: str, tmp_path: Path) -> None:
    survives_and_ends_exact(hugging_face(architecture, DECODERS.index(architecture), "next_token"), tmp_path / "run")


@pytest.mark.parametrize("architecture", ENCODERS)
def test_an_encoder(architecture: str, tmp_path: Path) -> None:
    survives_and_ends_exact(
        hugging_face(architecture, ENCODERS.index(architecture), "each_token", head="MaskedLM"), tmp_path / "run"
    )


@pytest.mark.parametrize("architecture", BOTH)
def test_an_encoder_with_a_decoder(architecture: str, tmp_path: Path) -> None:
    whole = as_whole(layers := built(architecture, **settings_of(architecture, {})), architecture)
    same_bits_as_whole(layers, whole, tied_in(whole))
    job = hugging_face(architecture, BOTH.index(architecture), "each_token", "Pairs", head="Seq2SeqLM")
    survives_and_ends_exact(job, tmp_path / "run")


def test_layers_that_hand_on_pytrees(tmp_path: Path) -> None:
    here = "tests.unit.test_boundaries"
    survives_and_ends_exact(
        job_of("pytrees", 3, f"{here}:layers", f"{here}:Lines", f"{here}:loss", {"count": 2}), tmp_path / "run"
    )


@pytest.mark.parametrize("name", ["resnet", "vgg", "alexnet", "gnmt", "bert", "gpt2"])
def test_a_workload_of_bamboo(name: str, tmp_path: Path) -> None:
    changes = [f"job.steps={STEPS}", "pipeline.stages=2"]
    survives_and_ends_exact(load_job(ROOT / "examples" / "bamboo" / f"{name}_small.toml", changes), tmp_path / "run")


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen3", "gemma3_text"])
def test_adapters_on_a_decoder(architecture: str, tmp_path: Path) -> None:
    lora = {"r": 4, "lora_dropout": 0.1, "target_modules": "all-linear"}
    survives_and_ends_exact(hugging_face(architecture, 11, "next_token", lora=lora), tmp_path / "run")


def test_tokens_that_weigh_the_same_whatever_their_microbatch(tmp_path: Path) -> None:
    job = hugging_face("llama", 12, "next_token_sum")
    train = job.train.model_copy(update={"reduction": "sum"})
    survives_and_ends_exact(job.model_copy(update={"train": train}), tmp_path / "run")


def test_muon_for_matrices_and_adamw_for_vectors(tmp_path: Path) -> None:
    job = hugging_face("gpt2", 13, "next_token")
    schedule = {"schedule": "torch.optim.lr_scheduler:CosineAnnealingLR", "schedule_args": {"T_max": STEPS}}
    changes = {"groups": "tests.unit.test_several_optimizers:muon_for_matrices", **schedule}
    train = job.train.model_copy(update=changes)
    survives_and_ends_exact(job.model_copy(update={"train": train}), tmp_path / "run")
