"""Encoders with a decoder of transformers, cut into layers: the bits of the whole model, and of the plain loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from culm.models import hf
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.tied import by_label
from tests.models.small import TOKENS, settings_of
from tests.unit import test_hf
from tests.unit.exactness import gives_the_plain_loops_bits

HEAD = "Seq2SeqLM"


def built(model: str, **settings: Any) -> list[nn.Module]:
    """All layers, with tied parameters in one memory, as a plain loop has them."""
    torch.manual_seed(0)
    made = hf.layers(model, HEAD, **settings)
    layers = [make() for make in made]
    for (first, name), *others in by_label(made):
        for layer, other in others:
            layers[layer].get_parameter(other).data = layers[first].get_parameter(name).data
    return layers


def samples() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, TOKENS, (2, 7), generator=generator)
    labels = torch.randint(3, TOKENS, (2, 5), generator=generator)
    mask = torch.tensor([[1] * 5 + [0] * 2, [1] * 7])
    of_decoder = torch.tensor([[1] * 5, [1] * 3 + [0] * 2])
    return [
        {"input_ids": tokens, "attention_mask": mask, "labels": labels.masked_fill(of_decoder == 0, hf.IGNORED)},
        {"input_ids": tokens, "decoder_input_ids": labels, "decoder_attention_mask": of_decoder, "labels": labels},
    ]


def same_bits_as_whole(layers: list[nn.Module], whole: Any, tied: set[str]) -> None:
    """Of logits, of the loss where the model takes one, and of gradients but those of parameters that are tied."""
    own = dict(whole.named_parameters(remove_duplicate=False))
    for sample in samples():
        expected = whole.eval()(**sample, use_cache=False)
        logits: torch.Tensor = test_hf.through(layers, sample)
        assert torch.equal(logits, expected.logits)
        loss = hf.each_token(logits, sample["labels"])
        assert torch.equal(loss, expected.loss)
        for each in (loss, expected.loss):
            each.backward()
        for layer in layers:
            for name, parameter in layer.named_parameters():
                gradient = own[name.removeprefix("model.")].grad
                if name.removeprefix("model.") not in tied and parameter.requires_grad:
                    assert torch.equal(gradient, parameter.grad), name  # type: ignore[arg-type]
        for module in (whole, *layers):
            module.zero_grad()


def tied_in(whole: nn.Module) -> set[str]:
    names: dict[int, set[str]] = {}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return {name for each in names.values() if len(each) > 1 for name in each}


def as_whole(layers: list[nn.Module], architecture: str) -> nn.Module:
    config = transformers.AutoConfig.for_model(architecture, **settings_of(architecture, {}))
    whole: nn.Module = transformers.AutoModelForSeq2SeqLM.from_config(config)  # type: ignore[no-untyped-call]
    values = {name.removeprefix("model."): x for layer in layers for name, x in layer.state_dict().items()}
    whole.load_state_dict(values)
    return whole


# Biases that the first block makes for all others; learned positions; positions that follow from a shape.
@pytest.mark.parametrize("architecture", ["t5", "bart", "marian"])
def test_the_layers_have_the_bits_of_the_whole_model(architecture: str) -> None:
    layers = built(architecture, **settings_of(architecture, {}))
    assert [type(layer).__name__ for layer in layers] == [
        "EncoderEmbed", *["Block"] * 2, "DecoderEmbed", *["Block"] * 2, "Head",
    ]  # fmt: skip
    whole = as_whole(layers, architecture)
    same_bits_as_whole(layers, whole, tied_in(whole))


def test_the_table_is_one_parameter_and_begins_as_transformers_draws_it() -> None:
    made = hf.layers("t5", HEAD, **settings_of("t5", {}))
    names = [[f"{layer}.{name}" for layer, name in group] for group in by_label(made)]
    assert names == [["0.model.shared.weight", "3.model.decoder.embed_tokens.weight", "6.model.lm_head.weight"]]
    assert 0.9 < made[0]().get_parameter("model.shared.weight").std() < 1.1  # other tables: 0.02


def job_of(architecture: str, stages: int, splits: bool) -> Job:
    job = test_hf.job_of(architecture, stages, splits, loss="each_token", ties={}, head=HEAD)
    return job.model_copy(update={"data": job.data.model_copy(update={"dataset": "tests.models.small:Pairs"})})


@pytest.mark.parametrize(("architecture", "stages", "splits"), [("t5", 7, True), ("bart", 3, False)])
def test_every_cut_gives_the_plain_loops_bits(architecture: str, stages: int, splits: bool) -> None:
    """With dropout, padding on both sides, and what the encoder gave in every decoder block."""
    job = job_of(architecture, stages, splits)
    if splits:
        check_job(job)
    gives_the_plain_loops_bits(job)


def of_folder(folder: Path) -> Any:
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)


@pytest.mark.parametrize("is_apart", [False, True], ids=["tied", "apart"])
def test_a_folder_begins_and_ends_with_the_logits_of_transformers(tmp_path: Path, is_apart: bool) -> None:
    """T5 1.1 and what came of it have a head of their own, and a config that says nothing of it."""
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model("t5", **settings_of("t5", {}), tie_word_embeddings=not is_apart)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_config(config)  # type: ignore[no-untyped-call]
    if is_apart:
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.save_pretrained(tmp_path / "begin", max_shard_size="20KB")
    layers = built(str(tmp_path / "begin"))
    begins = of_folder(tmp_path / "begin")
    assert (begins.lm_head.weight is begins.shared.weight) is not is_apart
    same_bits_as_whole(layers, begins, tied_in(begins))
    with torch.no_grad():
        for parameter in {id(p): p for layer in layers for p in layer.parameters()}.values():
            parameter.mul_(1.5) if parameter.dim() < 2 else None
    weights = {f"{number}.{name}": x for number, layer in enumerate(layers) for name, x in layer.state_dict().items()}
    hf.save_folder(str(tmp_path / "end"), weights, str(tmp_path / "begin"), HEAD)
    ends = of_folder(tmp_path / "end")
    same_bits_as_whole(layers, ends, tied_in(ends))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"model": "t5"}, 'an encoder with a decoder wants head = "Seq2SeqLM"'),
        ({"model": "bart", "head": HEAD, "tie_word_embeddings": False}, "model.shared has parameters and is never"),
        ({"model": "m2m_100", "head": HEAD}, "encoder_layerdrop = 0.05 leaves out whole blocks by chance"),
        ({"model": "mpnet", "head": "MaskedLM"}, "is given what other parameters than the blocks' have made"),
    ],
)
def test_what_cannot_be_cut_is_named(args: dict[str, Any], said: str) -> None:
    sizes = {} if args["model"] == "m2m_100" else settings_of(args["model"], {})
    with pytest.raises(JobError, match=r"^model\.args: ") as error:
        hf.layers(**{**sizes, **args})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sample_without_anything_for_the_decoder_is_refused() -> None:
    embed = hf.layers("t5", HEAD, **settings_of("t5", {}))[0]()
    with pytest.raises(ValueError, match='input is no dict with "labels" or "decoder_input_ids" for the decoder'):
        embed({"input_ids": torch.ones(1, 3, dtype=torch.long)})


def test_labels_without_a_first_token_for_the_decoder_are_refused() -> None:
    settings = {name: size for name, size in settings_of("t5", {}).items() if name != "decoder_start_token_id"}
    layers = [make() for make in hf.layers("t5", HEAD, **settings)]
    with pytest.raises(ValueError, match="labels cannot be shifted: the config has no decoder_start_token_id; set it"):
        test_hf.through(layers, samples()[0])
    assert test_hf.through(layers, samples()[1]).shape == (2, 5, TOKENS)
