"""Tries, before anything starts, what will be copied later: does a copy of an optimizer go on as the optimizer does?

Copies are made of layers being seeded, of checkpoints and of final weights. An optimizer may keep what no copy takes
along: an attribute of its own, a scheduler hooked into its step, tensors in a list, random numbers. Then a standby, or
a run that is resumed, would train on with other bits and nobody would be told; so such an optimizer is refused by name.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from culm.pipeline.checkpoints.digest import hash_layer
from culm.pipeline.errors import JobError
from culm.pipeline.tensors.bits import same_bits
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.imports import RAISED, described
from culm.stage_server.compute.device import Device
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.optimizer_state import held_over

# What is tried, on small parameters, with random gradients:
#
#     copies       after 1, 2, 5 and 24 steps a new layer installs what the first one exports, and both go on. In the
#                  end all have to have the same bits. Early copies catch state that comes with the first steps, the
#                  late one catches a counter or a schedule that acts only then.
#     attributes   numbers and tensors that it keeps of its own, outside ``state`` and ``param_groups``, must not change
#     apart        two layers with an optimizer each step as they do under one optimizer for both

STEPS = 40
COPIED = (1, 2, 5, 24)  # after so many steps a copy is made, which then goes on beside
LARGEST = 4  # elements of each dimension: a small parameter shows it as well as a large one
MOST = 8  # parameters

APART = 5  # steps
NO_GRADIENT = (1, 3)  # steps of these in which the second layer has none, as one that is skipped now and then
Shapes = list[tuple[tuple[int, ...], torch.dtype]]
Make = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


def try_copying(make: Make, like: Iterable[torch.Tensor], name: str, device: Device) -> None:
    """Raises JobError, naming what cannot be copied, unless copies of ``make``'s optimizer go on with the same bits.

    ``like``: parameters with the dtypes and numbers of dimensions that the model has.
    """
    shapes = _small(like)
    layer = partial(_layer, make, shapes, device)
    # Some want a gradient of every parameter in every step, which most models give: torch's fused SGD with momentum.
    for with_gaps in (True, False):
        try:
            _try(layer, shapes, name, with_gaps)
            _try_apart(layer, shapes, name, with_gaps)
            return
        except JobError:
            raise
        except RAISED as error:
            if not with_gaps:
                raise _refusal(name, f"it raised {described(error)}") from error


def try_going_on(
    before: Make, after: Make, changed: frozenset[str], like: Iterable[torch.Tensor], device: Device
) -> None:
    """Raises JobError where an optimizer cannot step with what it kept under the options that it had before.

    ``before``, ``after``: make it with each; ``changed``: which options differ. Adam has kept no largest averages for
    amsgrad, and raises at its first step. SGD has no momentum yet, and begins with one.
    """
    shapes, generator = _small(like), torch.Generator().manual_seed(0)
    then, now = _layer(before, shapes, device), _layer(after, shapes, device)
    for _ in range(2):
        then.apply(_value(_drawn(shapes, generator)), 1.0, 0)
    now.install(Value(held_over(then.export().tensors, changed)))
    try:
        now.apply(_value(_drawn(shapes, generator)), 1.0, 0)
    except RAISED as error:
        what = f"a step with the state of the checkpoint raised {described(error)}"
        mend = f"set {', '.join(sorted(changed))} back, or export the weights and begin a run whose layers load them"
        raise JobError(what, "train.optimizer_args", mend) from error


def _small(like: Iterable[torch.Tensor]) -> Shapes:
    return [(tuple(min(size, LARGEST) for size in p.shape), p.dtype) for p in like][:MOST]


def _layer(make: Make, shapes: Shapes, device: Device, copies: int = 1) -> HeldLayer:
    module = nn.Module()
    for i, (shape, dtype) in enumerate(shapes * copies):
        values = torch.linspace(-1.0, 1.0, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
        module.register_parameter(f"p{i}", nn.Parameter(values.to(dtype).to(device.place)))
    return HeldLayer(0, module, make(list(module.parameters())), device)


def _try_apart(layer: Callable[..., HeldLayer], shapes: Shapes, name: str, with_gaps: bool) -> None:
    """Each layer has an optimizer of its own, so that it can be held anywhere; one process alone has one for all.

    ``with_gaps``: now and then one of the layers has no gradient.
    """
    both, each = layer(copies=2), [layer(), layer()]
    generator = torch.Generator().manual_seed(0)
    for step in range(APART):
        drawn = [_drawn(shapes, generator) for _ in each]
        if with_gaps and step in NO_GRADIENT:
            drawn[1] = []
        for held, gradients in zip(each, drawn, strict=True):
            held.apply(_value(gradients), 1.0, 0)
        both.apply(_value([*drawn[0], *drawn[1]]), 1.0, 0)
    apart = [p for held in each for p in held.module.parameters()]
    if not all(same_bits(a, b) for a, b in zip(apart, both.module.parameters(), strict=True)):
        what = "it steps a layer otherwise when it has other layers' parameters as well"
        raise JobError(
            f"{name} cannot run on layers apart: {what}",
            "train.optimizer",
            "take one that treats each parameter by itself",
        )


def _drawn(shapes: Shapes, generator: torch.Generator) -> list[torch.Tensor]:
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s, dtype in shapes]


def _value(gradients: list[torch.Tensor], without: Collection[int] = ()) -> Value:
    return Value(tuple((f"grad.p{i}", g.clone()) for i, g in enumerate(gradients) if i not in without))


def _try(layer: Callable[..., HeldLayer], shapes: Shapes, name: str, with_gaps: bool) -> None:
    held = [layer()]
    generator = torch.Generator().manual_seed(0)
    seen: list[dict[str, Any]] = [_kept_beside(held[0])]
    for step in range(STEPS):
        if step in COPIED:
            held.append(layer())
            try:
                held[-1].install(held[0].export())
            except TypeError as error:
                raise _refusal(name, str(error)) from error
            seen.append(_kept_beside(held[0]))
        gradients = _drawn(shapes, generator)
        late = [0] if with_gaps and step % 3 == 0 and len(shapes) > 1 else []  # no gradient: its state comes late
        for each in held:
            each.apply(_value(gradients, late), 1.0, 0)
    seen.append(_kept_beside(held[0]))
    # ``seen`` is of 0, 1, 2, 5, 24 and STEPS steps. What is set up in the first steps and then stays is no state, so
    # changes count from the fourth on.
    ends = {hash_layer(0, dict(each.export().tensors)) for each in held}
    kept = [key for key in seen[-1] if any(_differ(a.get(key), b.get(key)) for a, b in pairwise(seen[3:]))]
    if len(ends) > 1:
        named = f"it keeps {', '.join(sorted(kept))} beside its state and param_groups" if kept else ""
        what = "a copy of it goes on otherwise than it does: "
        raise _refusal(name, what + (named or "it draws random numbers, or keeps what is in no state_dict"))
    counts = [key for key in kept if isinstance(seen[-1][key], int | float | torch.Tensor)]
    if counts:
        raise _refusal(name, f"it keeps {', '.join(sorted(counts))} beside its state and param_groups, and changes it")


def _kept_beside(held: HeldLayer) -> dict[str, Any]:
    """What the optimizer has of its own, beside what torch gives every optimizer."""
    optimizer = held.optimizer
    assert optimizer is not None
    usual = {*vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)), "_step_count", "_opt_called"}
    own = {key: value for key, value in vars(optimizer).items() if key not in usual}
    return {key: _snapshot(value) for key, value in own.items()}


def _snapshot(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple | dict | set):
        return repr(value)
    if hasattr(value, "__dict__") and not callable(value):
        return repr({k: v for k, v in vars(value).items() if isinstance(v, bool | int | float | str | list)})
    return value


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return not same_bits(one, other)
    if isinstance(one, int | float | str) or isinstance(other, int | float | str):
        return type(one) is not type(other) or bool(one != other)
    return False


def _refusal(name: str, why: str) -> JobError:
    mend = "keep tensors and plain data in state and param_groups alone, or take another optimizer"
    return JobError(f"{name} cannot be copied to a standby or into a checkpoint: {why}", "train.optimizer", mend)
