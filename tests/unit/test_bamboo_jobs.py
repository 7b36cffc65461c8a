"""Bamboo's six workloads: at their own size they are the models that they are called, and small ones learn, exactly."""

import math
from pathlib import Path

import pytest
import torch
import transformers

from culm.examples.bamboo.vision import Pool
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import Job, job_to_toml, load_job, parse_job
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from tests.unit.exactness import gives_the_plain_loops_bits

FOLDER = Path(__file__).parents[2] / "examples" / "bamboo"
SMALL = ["resnet_small", "vgg_small", "alexnet_small", "gnmt_small", "bert_small", "gpt2_small"]


def job_of(name: str, *changes: str) -> Job:
    return load_job(FOLDER / f"{name}.toml", list(changes))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_a_job_survives_its_text(path: Path) -> None:
    job = load_job(path)
    assert parse_job(job_to_toml(job)) == job


LSTM = 4 * 1024 * 2 * 1024 + 8 * 1024  # of as many numbers in as out


# Of pictures torchvision's numbers with 1,000 classes; of GNMT from the sizes of its parts.
@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [
        ("resnet152", 52, 60_192_808),
        ("vgg19", 19, 143_667_240),
        ("alexnet", 8, 61_100_840),
        (
            "gnmt",
            19,
            # Tables and scores of 259 bytes; the first LSTM reads both ways; the first decoder attends.
            3 * 259 * 1024 + 259 + (2 * 4 * 512 * (1024 + 512) + 8 * 1024) + 15 * LSTM + 3 * 1024 * 1024 + 1024,
        ),
    ],
)
def test_at_its_own_size_it_is_the_model(name: str, layers: int, parameters: int) -> None:
    counts = ModelSource(job_of(name, *(["model.args.classes=1000"] if name != "gnmt" else []))).parameter_counts()
    assert (len(counts), sum(counts)) == (layers, parameters)


# GPT-2 XL has 1,557,611,200 parameters with its 50,257 tokens. A layer of BERT-large has 12,596,224; beside 23 of them
# lie the tables of 257 bytes, 512 places and two segments with their norm, and the head.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2_xl", 1_557_611_200 - (50_257 - 256) * 1_600),
        ("bert_large", 23 * 12_596_224 + (257 + 512 + 2 + 2) * 1024 + (1024 + 1 + 2) * 1024 + 257),
    ],
)
def test_a_model_of_hugging_face_has_its_size(name: str, parameters: int) -> None:
    args = dict(job_of(name).model.args)
    made = getattr(transformers, f"AutoModelFor{args.pop('head', 'CausalLM')}")
    with torch.device("meta"):
        model = made.from_config(transformers.AutoConfig.for_model(args.pop("model"), **args))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("name", ["resnet152", "vgg19", "alexnet"])
def test_pictures_are_of_the_size_that_the_model_is_for(name: str) -> None:
    picture, digit = ModelSource(job_of(name)).dataset()[13]
    assert (tuple(picture.shape), digit.item()) == ((3, 224, 224), 3)


@pytest.mark.parametrize(("height", "width", "side"), [(7, 7, 7), (1, 1, 6), (13, 10, 6), (2, 9, 7)])
def test_a_pool_takes_the_means_that_torchs_takes(height: int, width: int, side: int) -> None:
    x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(Pool(side)(x), torch.nn.AdaptiveAvgPool2d(side)(x))


@pytest.mark.parametrize("name", SMALL)
def test_a_small_one_gives_the_plain_loops_bits(name: str) -> None:
    job = job_of(name, "job.steps=2", "pipeline.pipelines=1")
    check_job(job)
    gives_the_plain_loops_bits(job)


TAKES_LONG = ("alexnet_small", "bert_small", "gpt2_small", "resnet_small", "vgg_small")  # make models


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in TAKES_LONG else n for n in SMALL])
def test_a_small_one_learns(name: str) -> None:
    losses = run_plain(job_of(name)).losses
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    classes = {"gnmt_small": 259, "bert_small": 257, "gpt2_small": 256}.get(name, 10)
    assert first < 1.3 * math.log(classes)
    assert last < 0.9 * first, "what it is shown has something to learn"
