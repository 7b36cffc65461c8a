"""Adapters on a model of Hugging Face: they alone train, in every cut, and peft loads what was trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from culm.models import hf
from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer
from tests.models.small import TOKENS, settings_of
from tests.unit.exactness import gives_the_plain_loops_bits
from tests.unit.test_hf import job_of as job_without
from tests.unit.test_hf import through

LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1}


def job_of(architecture: str, stages: int = 2, splits: bool = False, **lora: Any) -> Job:
    return job_without(architecture, stages, splits, ties={}, lora={**LORA, **lora})


@pytest.mark.parametrize(
    ("architecture", "stages", "splits"),
    [("gpt2", 1, False), ("gpt2", 5, True), ("llama", 2, True), ("llama", 5, False)],
)
def test_every_cut_gives_the_plain_loops_bits(architecture: str, stages: int, splits: bool) -> None:
    job = job_of(architecture, stages, splits)
    check_job(job)
    gives_the_plain_loops_bits(job)


def test_adapters_alone_train_and_have_state() -> None:
    job = job_of("gpt2")
    source = ModelSource(job)
    layers = [HeldLayer.build(source, index, CPU) for index in range(source.layer_count)]
    assert [layer.optimizer is None for layer in layers] == [True, False, False, False, True]
    for layer in layers:
        trained = [name for name, p in layer.module.named_parameters() if p.requires_grad]
        assert all(".lora_A." in name or ".lora_B." in name for name in trained)
    before = {i: layer.module.state_dict() for i, layer in enumerate(layers)}
    for index, state in run_plain(job).layers:
        moved = [name for name, tensor in state.items() if not torch.equal(tensor, before[index][name])]
        assert all("lora" in name for name in moved)
        assert bool(moved) is (1 <= index <= 3)


def test_peft_loads_the_adapters_over_the_model_that_was_adapted(tmp_path: Path) -> None:
    import peft  # seconds of imports, which every process that runs tests would do

    torch.manual_seed(4)
    config = transformers.AutoConfig.for_model("gpt2", **settings_of("gpt2", {}))
    base: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    base.save_pretrained(tmp_path / "base")
    args: dict[str, Any] = {"model": str(tmp_path / "base"), "lora": LORA}
    job = job_of("gpt2")
    job = job.model_copy(update={"model": job.model.model_copy(update={"args": args})})
    plain = run_plain(job)
    weights = {f"{index}.{name}": tensor for index, state in plain.layers for name, tensor in state.items()}
    hf.save_folder(str(tmp_path / "adapters"), weights, **args)
    names = {path.name for path in (tmp_path / "adapters").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapters").eval()
    layers = [make() for make in hf.layers(**args)]
    for (_, state), layer in zip(plain.layers, layers, strict=True):
        layer.load_state_dict(state)
    tokens = torch.randint(3, TOKENS, (2, 7), generator=torch.Generator().manual_seed(1))
    assert torch.equal(adapted(tokens, use_cache=False).logits, through(layers, tokens))


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        (
            {"target_modules": ["nothing"]},
            "no module of the model gets an adapter: Target modules {'nothing'} not found",
        ),
        ({"rank": 4}, "LoraConfig has no setting 'rank'"),
        ({"r": 0}, "peft makes no adapters: `r` should be a positive integer value"),
        ({"lora_dropuot": 0.5}, "LoraConfig has no setting 'lora_dropuot'; did you mean lora_dropout?"),
    ],
)
def test_what_peft_does_not_take_is_named(lora: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=r"^model\.args: ") as error:
        check_job(job_of("gpt2", **lora))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
