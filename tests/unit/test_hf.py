"""Models of transformers, cut into layers: each computes the bits of the whole model, and a stage those of the loop."""

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from culm.models import hf
from culm.models.anatomy import anatomy_of
from culm.models.weights import weights_at
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.tied import by_label
from tests.models.small import TOKENS, UNTIED, settings_of
from tests.unit.exactness import ADAMW, gives_the_plain_loops_bits, make_job

# Learned positions, rotary ones, ALiBi; tuples, tensors; norms before and after; windows of several kinds; experts.
DECODERS = ["gpt2", "llama", "gemma3_text", "opt", "bloom", "gpt_neox", "phi3", "mixtral", "olmo2", "cohere2"]


def built(architecture: str, **more: Any) -> list[nn.Module]:
    torch.manual_seed(0)
    return [make() for make in hf.layers(architecture, **settings_of(architecture), **more)]


def whole_with(layers: list[nn.Module], architecture: str, head: str = "CausalLM") -> nn.Module:
    """The whole model with the layers' values: no name is missing, and none comes twice."""
    config = transformers.AutoConfig.for_model(architecture, **settings_of(architecture))
    auto = getattr(transformers, f"AutoModelFor{head}")
    whole: nn.Module = auto.from_config(config, experts_implementation="eager")
    values: dict[str, torch.Tensor] = {}
    for layer in layers:
        own = {name.removeprefix("model."): tensor for name, tensor in layer.state_dict().items()}
        twice = [name for name in own if name in values and name in dict(whole.named_parameters())]
        assert not twice
        values |= own
    found = whole.load_state_dict(values, strict=False)
    assert not found.unexpected_keys
    assert not [name for name in found.missing_keys if name in dict(whole.named_parameters())]
    return whole.eval()


def through(layers: list[nn.Module], x: Any) -> torch.Tensor:
    for layer in layers:
        x = layer.eval()(x)
    assert isinstance(x, torch.Tensor)
    return x


def same_bits_as_whole(layers: list[nn.Module], whole: nn.Module) -> None:
    tokens = torch.randint(3, TOKENS, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    for inputs in ({"input_ids": tokens}, {"input_ids": tokens, "attention_mask": mask}):
        expected = whole(**inputs, use_cache=False).logits
        got = through(layers, inputs if len(inputs) > 1 else tokens)
        assert torch.equal(expected, got)
        for logits in (expected, got):
            logits.square().sum().backward()
        own = dict(whole.named_parameters())
        for layer in layers:
            for name, parameter in layer.named_parameters():
                gradient = own[name.removeprefix("model.")].grad
                assert (gradient is None) is (parameter.grad is None), name
                assert gradient is None or torch.equal(gradient, parameter.grad), name  # type: ignore[arg-type]
        for module in (whole, *layers):
            module.zero_grad()


@pytest.mark.parametrize("architecture", DECODERS)
def test_the_layers_of_a_decoder_have_the_bits_of_the_whole_model(architecture: str) -> None:
    layers = built(architecture)
    assert len(layers) == 5
    same_bits_as_whole(layers, whole_with(layers, architecture))


def test_a_masked_language_model_is_cut_as_well() -> None:
    layers = built("bert", head="MaskedLM")
    same_bits_as_whole(layers, whole_with(layers, "bert", "MaskedLM"))


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bert"])
def test_a_head_of_classes_finds_the_last_token_of_padded_rows(architecture: str) -> None:
    """Heads of decoders were given zeros in place of tokens: they took the class of whatever came last, padding too."""
    layers = built(architecture, head="SequenceClassification", num_labels=3)
    config = transformers.AutoConfig.for_model(architecture, **settings_of(architecture), num_labels=3)
    whole: nn.Module = transformers.AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    values = {name.removeprefix("model."): value for layer in layers for name, value in layer.state_dict().items()}
    whole.load_state_dict(values)
    mask = torch.arange(8) < torch.tensor([[8], [5], [3]])
    tokens = torch.where(mask, torch.randint(3, TOKENS, (3, 8), generator=torch.Generator().manual_seed(1)), 0)
    inputs = {"input_ids": tokens, "attention_mask": mask.long()}
    assert torch.equal(through(layers, inputs), whole.eval()(**inputs, use_cache=False).logits)


class ByToken(nn.Module):
    """Adds a row of a table of its own for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, 8)

    def forward(self, hidden: torch.Tensor, tokens: torch.Tensor | None) -> torch.Tensor:
        return hidden if tokens is None else hidden + self.table(tokens)


class Decoder(nn.Module):
    """As transformers builds one. ``by_token``: whether its blocks are given the tokens."""

    def __init__(self, by_token: bool) -> None:
        super().__init__()
        self.config, self.by_token = SimpleNamespace(is_encoder_decoder=False), by_token
        self.embed, self.blocks = nn.Embedding(TOKENS, 8), nn.ModuleList([ByToken(), ByToken()])

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
        hidden: torch.Tensor = self.embed(input_ids)
        for block in self.blocks:
            hidden = block(hidden, input_ids if self.by_token else None)
        return hidden


def test_blocks_that_are_given_the_tokens_are_seen() -> None:
    """As those of Qwen 4 and DeepSeek V4 are: each would have looked up token 0."""
    assert [anatomy_of(partial(Decoder, each), 2).reads_tokens for each in (True, False)] == [True, False]


def test_a_layer_has_no_memory_for_another_ones_parameters() -> None:
    for layer in built("llama"):
        tensors = [*layer.parameters(), *layer.buffers()]
        assert not any(tensor.is_meta for tensor in tensors)
    embed, *blocks, head = built("llama")
    assert [name for name, _ in embed.named_parameters()] == ["model.model.embed_tokens.weight"]
    assert [name for name, _ in head.named_parameters()] == ["model.model.norm.weight", "model.lm_head.weight"]
    for number, block in enumerate(blocks):
        assert all(name.startswith(f"model.model.layers.{number}.") for name, _ in block.named_parameters())


# ---- weights to start from ------------------------------------------------------------------------------------------


@cache
def saved() -> nn.Module:
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model("gpt2", **settings_of("gpt2"))
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model


@pytest.mark.parametrize("shard", ["1GB", "20KB"], ids=["one file", "shards"])
def test_layers_begin_with_the_weights_of_a_folder(tmp_path: Path, shard: str) -> None:
    model: Any = saved()
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1 or shard == "1GB"
    own = dict(model.named_parameters())
    for layer in (make() for make in hf.layers(str(tmp_path))):
        for name, parameter in layer.named_parameters():
            assert torch.equal(parameter, own[name.removeprefix("model.")])


def test_a_folder_that_lacks_a_parameter_is_named(tmp_path: Path) -> None:
    model: Any = saved()
    model.config.save_pretrained(tmp_path)
    values = {name: tensor.clone() for name, tensor in model.state_dict().items() if "ln_f" not in name}
    save_file(values, tmp_path / "model.safetensors")
    *others, head = hf.layers(str(tmp_path), tie_word_embeddings=False)
    assert [make() for make in others]
    with pytest.raises(JobError, match=r"has no weights for transformer\.ln_f\.weight; save the folder from this arch"):
        head()


def test_a_folder_without_the_models_prefix_is_read(tmp_path: Path) -> None:
    model: Any = saved()
    model.transformer.save_pretrained(tmp_path)
    embed = hf.layers(str(tmp_path), tie_word_embeddings=False)[0]()
    assert torch.equal(dict(embed.named_parameters())["model.transformer.wte.weight"], model.transformer.wte.weight)


def test_a_folder_with_ties_gives_both_parameters_their_values(tmp_path: Path) -> None:
    torch.manual_seed(8)
    config = transformers.AutoConfig.for_model("gpt2", **settings_of("gpt2") | {"tie_word_embeddings": True})
    tied: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    tied.save_pretrained(tmp_path)
    embed, *_, head = (make() for make in hf.layers(str(tmp_path), tie_word_embeddings=False))
    table = tied.transformer.wte.weight
    assert torch.equal(dict(embed.named_parameters())["model.transformer.wte.weight"], table)
    assert torch.equal(dict(head.named_parameters())["model.lm_head.weight"], table)


class Scaled(nn.Module):
    scale: torch.Tensor
    other: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("other", torch.ones(2))
        self.weight = nn.Parameter(torch.zeros(2))


def test_buffers_that_a_folder_has_are_read(tmp_path: Path) -> None:
    save_file({"scale": torch.full((2,), 0.25), "weight": torch.ones(2)}, tmp_path / "model.safetensors")
    found, module = weights_at(str(tmp_path)), Scaled()
    assert found is not None
    found.read_into(module)
    assert [module.scale.tolist(), module.other.tolist(), module.weight.tolist()] == [[0.25] * 2, [1.0] * 2, [1.0] * 2]


def test_weights_in_another_format_are_not_passed_over(tmp_path: Path) -> None:
    model: Any = saved()
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(JobError, match=r"has weights in another format \(pytorch_model\.bin\)"):
        hf.layers(str(tmp_path))


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    model: Any = saved()
    model.save_pretrained(tmp_path)
    with pytest.raises(JobError, match=r"wte\.weight in .* has the shape \[99, 32\], and the config wants \[77, 32\]"):
        hf.layers(str(tmp_path), vocab_size=77)[0]()


# ---- ties -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "head", "names"),
    [
        ("gpt2", "CausalLM", [["0.model.transformer.wte.weight", "4.model.lm_head.weight"]]),
        ("gemma3_text", "CausalLM", [["0.model.model.embed_tokens.weight", "4.model.lm_head.weight"]]),
        (
            "bert",
            "MaskedLM",
            [["0.model.bert.embeddings.word_embeddings.weight", "4.model.cls.predictions.decoder.weight"]],
        ),
    ],
)
def test_the_ties_of_an_architecture_are_found(architecture: str, head: str, names: list[list[str]]) -> None:
    torch.manual_seed(0)
    layers = hf.layers(architecture, head, **settings_of(architecture, {}))
    found = by_label(layers)
    assert [[f"{layer}.{name}" for layer, name in group] for group in found] == names
    embed, last = dict(layers[0]().named_parameters()), dict(layers[4]().named_parameters())
    assert names[0][0].partition(".")[2] in embed
    assert names[0][1].partition(".")[2] in last


def test_what_one_layer_uses_in_two_places_stays_one() -> None:
    """BERT's head has its bias under two names: on a node they were two parameters, and its neighbours refused them."""
    head = hf.layers("bert", "MaskedLM", **settings_of("bert", {}))[4]()
    own = dict(head.named_parameters(remove_duplicate=False))
    assert own["model.cls.predictions.bias"] is own["model.cls.predictions.decoder.bias"]


def test_a_tie_goes_with_its_layers_into_another_list() -> None:
    layers = hf.layers("gpt2", **settings_of("gpt2", {}))
    assert by_label([*layers]) == by_label(layers)
    assert by_label(layers[:-1]) == []
    others = hf.layers("gpt2", **settings_of("gpt2", {}))
    assert len(by_label([*layers, *others])) == 2, "two models are two, whatever their names"


def test_a_tied_model_gives_the_logits_of_the_whole_one(tmp_path: Path) -> None:
    torch.manual_seed(8)
    config = transformers.AutoConfig.for_model("gpt2", **settings_of("gpt2", {}))
    tied: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    tied.save_pretrained(tmp_path)
    tokens = torch.randint(3, TOKENS, (2, 7), generator=torch.Generator().manual_seed(1))
    expected = tied.eval()(tokens, use_cache=False).logits
    assert torch.equal(through([make() for make in hf.layers(str(tmp_path))], tokens), expected)


# ---- training -------------------------------------------------------------------------------------------------------


def job_of(
    architecture: str,
    stages: int,
    splits: bool = False,
    loss: str = "next_token",
    ties: Mapping[str, Any] = UNTIED,
    **args: Any,
) -> Job:
    job = make_job(stages, 3, ADAMW, True, count=2)
    args = {"model": architecture, **settings_of(architecture, ties), **args}
    changes = {
        "model": job.model.model_copy(update={"layers": "culm.models.hf:layers", "args": args}),
        "data": job.data.model_copy(update={"dataset": "tests.models.small:Lines", "args": {}}),
        "train": job.train.model_copy(update={"loss": f"culm.models.hf:{loss}"}),
        "pipeline": job.pipeline.model_copy(update={"schedule": "zb-h1"} if splits else {}),
    }
    return job.model_copy(update=changes)


@pytest.mark.parametrize("splits", [False, True], ids=["1f1b", "zb-h1"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "mixtral"])
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_every_cut_gives_the_plain_loops_bits(architecture: str, stages: int, splits: bool) -> None:
    """GPT-2 with its dropout, experts of which a microbatch leaves some out, and padding."""
    job = job_of(architecture, stages, splits)
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize(("architecture", "stages"), [("gpt2", 1), ("gpt2", 5), ("gemma3_text", 2)])
def test_every_cut_of_a_tied_model_gives_the_plain_loops_bits(architecture: str, stages: int) -> None:
    job = job_of(architecture, stages, ties={})
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize("ties", [{}, UNTIED], ids=["tied", "untied"])
def test_bert_learns_masked_tokens(ties: Mapping[str, Any]) -> None:
    job = job_of("bert", 3, loss="each_token", head="MaskedLM", ties=ties)
    check_job(job)
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize(
    ("loss", "dataset", "said"),
    [
        ("next_token", "Moved", "the token after each already, and culm.models.hf:next_token moves them once more"),
        ("next_token_sum", "Moved", 'name "culm.models.hf:each_token_sum"'),
        ("each_token", "Lines", 'it would learn to copy; name "culm.models.hf:next_token"'),
    ],
)
def test_targets_that_are_moved_twice_or_never_are_refused(loss: str, dataset: str, said: str) -> None:
    """They trained without an error, on the token after the next one, or on the token itself."""
    job = job_of("gpt2", 1, loss=loss)
    data = job.data.model_copy(update={"dataset": f"tests.models.small:{dataset}"})
    reduction = {"reduction": "sum"} if loss.endswith("sum") else {}
    with pytest.raises(JobError) as error:
        check_job(job.model_copy(update={"data": data, "train": job.train.model_copy(update=reduction)}))
    assert said in str(error.value)


def test_an_accuracy_of_copied_tokens_is_refused_beside_a_loss_of_the_next_one() -> None:
    """It fell while the model learned: it compared what follows each token with the token."""
    job = job_of("gpt2", 1)
    metrics = {"accuracy": "culm.metrics:token_accuracy"}
    with pytest.raises(JobError, match=r'train\.metrics\.accuracy: .*; name "culm\.metrics:next_token_accuracy"'):
        check_job(job.model_copy(update={"train": job.train.model_copy(update={"metrics": metrics})}))


def test_every_token_weighs_the_same_where_the_loss_is_a_sum() -> None:
    job = job_of("gpt2", 2, loss="next_token_sum", ties={})
    job = job.model_copy(update={"train": job.train.model_copy(update={"reduction": "sum"})})
    check_job(job)
    gives_the_plain_loops_bits(job)


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"model": "no/such/folder"}, "no model at 'no/such/folder'"),
        ({"model": "llama", "head": "Nothing"}, "transformers has no AutoModelForNothing"),
        ({"model": "llama", "dtype": "float99"}, "torch has no dtype 'float99'"),
        ({"model": "llama", "num_hidden_layers": 0}, "has no number of blocks"),
        ({"model": "vit", "head": "ImageClassification"}, "transformers makes no model of this ViTConfig"),
        ({"model": "mixtral", "output_router_logits": True}, "output_router_logits = True has transformers add"),
        ({"model": "llama", "hiden_size": 32}, "LlamaConfig has no setting 'hiden_size'; did you mean hidden_size?"),
        ({"model": "bloom", "attention": "sdpa", **UNTIED}, "transformers makes no model of this BloomConfig"),
        ({"model": "openai-gpt", **UNTIED}, "no initial values without its files"),
    ],
)
def test_what_cannot_be_built_is_named(args: dict[str, Any], said: str) -> None:
    def build_all() -> None:
        for make in hf.layers(**args):
            make()

    with pytest.raises(JobError, match=r"^model\.args: ") as error:
        build_all()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
