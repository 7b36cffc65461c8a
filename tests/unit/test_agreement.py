"""What a checkpoint's state has to fit: tensors of the same shapes, of which the same ones are trained."""

from dataclasses import replace

import pytest
from torch import nn

from culm.coordinator import agreement
from culm.coordinator.agreement import Agreement
from culm.pipeline.identity import FROZEN, Identity, identity_from, identity_to
from culm.pipeline.user_code.outline import Outline


def identity(frozen: tuple[int, ...]) -> Identity:
    """Of a model of one layer with three parameters, some of which are not trained."""
    layer = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    for place in frozen:
        layer[place].requires_grad_(False)
    return Identity({"code": "a"}, (Outline.of(layer).text,))


@pytest.mark.parametrize("now", [(), (0, 1), (1,)])
def test_a_run_is_not_resumed_with_other_parameters_frozen(now: tuple[int, ...]) -> None:
    """Moments of one parameter went to another of its shape, and nothing was said."""
    made = identity_from(identity_to(identity((0,))))
    said = agreement.refusal(Agreement(checkpoint=made), "n0", identity(now))
    assert said.startswith("layer 0 has ")
    assert said.endswith(" where the checkpoint was made: resume the same model")
    assert agreement.refusal(Agreement(checkpoint=made), "n0", identity((0,))) == ""


def test_a_checkpoint_of_old_does_not_say_what_was_frozen() -> None:
    told = identity_to(identity((0,)))
    old = identity_from({k: v for k, v in told.items() if k != "tells_frozen"} | {"outlines": [bare(told)]})
    assert agreement.refusal(Agreement(checkpoint=old), "n0", identity((0,))) == ""


def test_a_node_of_an_older_version_joins_a_run_with_frozen_parameters() -> None:
    of_old = replace(identity((0,)), outlines=(bare(identity_to(identity((0,)))),))
    known = agreement.joined(Agreement(), identity((0,)), same_hardware=True)
    assert agreement.refusal(known, "n1", of_old) == ""


def bare(told: dict[str, list[str]]) -> str:
    (outline,) = told["outlines"]
    return outline.replace(FROZEN, "")
