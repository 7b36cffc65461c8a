"""A checkpoint as one process of plain PyTorch has it: state dicts of the model, its optimizers and schedulers."""

# A checkpoint has the state layer by layer, each with an optimizer of its own. In one process an optimizer has all
# parameters, in order of layers, and in the groups of the job. So the layers are restored as on a node, the job's
# optimizers are made over their parameters, and each gets what the layers' optimizers have.
#
# torch takes any state of the right number of parameters without a word. So whatever would not go on with the same bits
# there is refused here: what the job's code makes otherwise by now, what ``load_state_dict`` would convert, what no
# state dict holds.

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from culm.pipeline.checkpoints.layer_file import AVERAGE, read_layer
from culm.pipeline.checkpoints.manifest import Manifest, read_manifest
from culm.pipeline.errors import JobError
from culm.pipeline.job import parse_job
from culm.pipeline.tensors.bits import same_bits
from culm.pipeline.user_code.entries import entries_of
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.optimizers import OWN
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer

State = dict[str, Any]
CODE_MEND = "export where the job's code is as it was in training"
STAY_MEND = "go on with culm run --resume, or take the weights alone"


def plain_state(folder: str) -> State:
    """What ``load_state_dict`` takes, of the checkpoint in the folder.

    ``step``: how many steps are applied. ``model``: of an nn.Sequential of the job's layers. ``optimizer`` and, if the
    job has a schedule, ``scheduler``: of the job's own optimizer over the parameters that are trained, by group.
    ``others``: the same of other optimizers that the job's groups name, by name. ``average``: of ``train.average``.

    Imports the job's code. Raises CheckpointCorrupt, and JobError for a state that would not go on with the same bits.
    """
    manifest = read_manifest(folder)
    if not manifest.job_toml:
        raise JobError("the checkpoint does not say which job made it", folder, "take the weights alone")
    source = ModelSource(parse_job(manifest.job_toml, f"{folder}, its job"))
    if source.layer_count != len(manifest.files):
        what = f"the model has {source.layer_count} layers now, and the checkpoint {len(manifest.files)}"
        raise JobError(what, folder, CODE_MEND)
    layers = [_restored(source, folder, manifest, index) for index in range(source.layer_count)]
    weights = {f"{x.index}.{name}": entry for x in layers for name, entry in x.module.state_dict().items()}
    state: State = {"step": manifest.step, "model": weights}
    for name, part in _by_optimizer(source, layers, manifest.step).items():
        (state if name == OWN else state.setdefault("others", {}).setdefault(name, {})).update(part)
    if source.average is not None:
        state["average"] = {
            f"{layer.index}.{name.removeprefix(AVERAGE + '.')}": entry
            for layer in layers
            for name, entry in layer.export().tensors
            if name.startswith(f"{AVERAGE}.")
        }
    return state


def _restored(source: ModelSource, folder: str, manifest: Manifest, index: int) -> HeldLayer:
    value = read_layer(folder, manifest, index)
    layer = HeldLayer.build(source, index, CPU)
    where = f"{folder}, layer {index}"
    there = dict(value.tensors)
    for name, tensor in entries_of(layer.module).items():
        if name.startswith("transient.") and name in there and not same_bits(tensor.detach(), there[name]):
            what = f"{name.partition('.')[2]} has changed in training, and is in no state dict"
            raise JobError(what, where, f"let it be a persistent buffer, or {STAY_MEND}")
    layer.install(value)
    # What an optimizer of a card keeps in the host's memory is beside its parameter here.
    here, there = (
        {re.sub(r"^host\.", "optimizer.", name): tensor for name, tensor in each.tensors}
        for each in (layer.export(), value)
    )
    for name in sorted(here.keys() | there.keys()):
        if name not in here or name not in there or not same_bits(here[name], there[name]):
            raise JobError(f"the job's code as it is now has not the state of the training ({name})", where, CODE_MEND)
    return layer


def _by_optimizer(source: ModelSource, layers: Sequence[HeldLayer], step: int) -> dict[str, State]:
    """Of each that trains parameters, by name: its state dict, and its scheduler's."""
    named = [(x.index, name, p) for x in layers for name, p in x.module.named_parameters() if p.requires_grad]
    grouped = source.grouped(each for each in named if each[:2] not in source.firsts)
    if not grouped:
        return {}
    numbers = {id(p): source.group_number(layer, name) for layer, name, p in named}
    schedule = source.schedule()
    scheduled = schedule.at(step) if schedule is not None else []
    optimizers, others = source.separate(grouped), source.separate(grouped)
    found = {}
    for name, optimizer in optimizers.items():
        of_groups = [numbers[id(group["params"][0])] for group in optimizer.param_groups]
        scheduler = _scheduler_at(source, optimizer, step, [scheduled[x] for x in of_groups] if scheduled else [])
        for group in optimizer.param_groups:
            _take_group(group, layers, schedule.keys if schedule is not None else ())
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            for layer in layers:
                if layer.optimizer is not None and (entries := layer.optimizer.state.get(parameter)):
                    optimizer.state[parameter] = entries
        state = {"optimizer": optimizer.state_dict()}
        _refuse_converted(others[name], optimizer, state["optimizer"])
        found[name] = state if scheduler is None else state | {"scheduler": scheduler.state_dict()}
    return found


def _scheduler_at(
    source: ModelSource, optimizer: torch.optim.Optimizer, step: int, wanted: Sequence[Mapping[str, Any]]
) -> Any:
    """The job's scheduler over the optimizer, after so many steps; None where the job has none."""
    mend = f"a schedule of several optimizers has to be the same for each; {STAY_MEND}"
    try:
        scheduler = source.scheduler(optimizer)
    except JobError as error:
        raise JobError(error.what, error.where, mend) from error
    if scheduler is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no optimizer has stepped
        for _ in range(step):
            scheduler.step()
    for group, options in zip(optimizer.param_groups, wanted, strict=True):
        if odd := [key for key, value in options.items() if group.get(key) != value]:
            what = f"over {type(optimizer).__name__} alone it gives {odd[0]} = {group.get(odd[0])} after step {step}"
            raise JobError(f"{what}, and in training {options[odd[0]]}", "train.schedule", mend)
    return scheduler


def _take_group(group: dict[str, Any], layers: Iterable[HeldLayer], scheduled: Iterable[str]) -> None:
    """What the layers' optimizers have as entries of the group, which is one number for all of them."""
    mine = {id(parameter) for parameter in group["params"]}
    theirs = [
        (layer.index, own)
        for layer in layers
        if layer.optimizer is not None
        for own in layer.optimizer.param_groups
        if any(id(parameter) in mine for parameter in own["params"])
    ]
    first, known = theirs[0]
    for index, own in theirs:
        for key in own.keys() - {"params", *scheduled}:
            if repr(own[key]) != repr(known[key]):
                what = f"{key} is {known[key]!r} for layer {first} and {own[key]!r} for layer {index} by now"
                raise JobError(what, "train.optimizer", f"one optimizer of both has one {key}: {STAY_MEND}")
            group[key] = own[key]


def _refuse_converted(other: torch.optim.Optimizer, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Raises JobError where an optimizer that loads the state has other bits. ``other``: over the same parameters."""
    other.load_state_dict(state)
    for parameter, entries in optimizer.state.items():
        for name, entry in entries.items():
            loaded = other.state[parameter][name]
            if not _is_same(loaded, entry):
                kinds = [x.dtype if isinstance(x, torch.Tensor) else type(x).__name__ for x in (entry, loaded)]
                what = f"load_state_dict would make {kinds[1]} of its {name}, which is {kinds[0]}"
                raise JobError(what, "train.optimizer", STAY_MEND)


def _is_same(one: Any, other: Any) -> bool:
    """Of two entries of an optimizer's state."""
    if isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and same_bits(one, other)
    if isinstance(other, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(other, dict):
        return list(one) == list(other) and all(_is_same(one[key], other[key]) for key in other)
    return repr(one) == repr(other)
