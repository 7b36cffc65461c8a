"""What all nodes of a run agree on, and the run with the checkpoint that it goes on from: else bits would differ."""

# A fact is kept: the first node's word counts, and a node that differs from it takes no part (rule 23). Three things
# are compared, in the order in which they become known:
#
#     Available    the parts of the identity: files, code, versions, hardware, samples; the outline of each layer
#     Available    the same with the checkpoint that the run goes on from, but for parts that ``--allow`` names
#     Built        a hash of each layer's initial state
#
# A layer's initial state is told by whoever builds it, before any gradient of it: so a weights file that a constructor
# reads counts too, and a model too large for one node is never read whole on one. A node whose layer differs takes part
# already, and is dismissed; no step was committed by its values, since Built comes before any Ready over the layer.
#
# A part that one side does not tell is not compared: what may differ with the hardware, or what an older version did
# not know.

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from culm.pipeline.identity import FROZEN, Identity, identity_from, identity_to
from culm.pipeline.identity_parts import OF_NODES, PARTS

# Each refusal ends in what to do: the reader starts machines, and has not read this code.
_FILES = "the files that [{0}] names in its arguments have other content on {1} than {2}"
_MENDS = {
    "model": "give every node the same files",
    "data": "give every node the same files",
    "train": "give every node the same files",
    "code": "install the same version on every node",
    "versions": "install the same versions on every node",
    "hardware": 'start nodes of one kind, or set job.hardware to "any" and give up that bits are the same',
    "configuration": "let its constructor go by the job's arguments alone, not by the machine or its environment",
    "samples": "give every node the same data in the same order, and sort what a folder or a set lists",
    "evaluation": "give every node the same data in the same order, and sort what a folder or a set lists",
}


@dataclass(frozen=True)
class Agreement:
    """What the first node said of each thing, and what the checkpoint says."""

    # Invariant: a part or an outline that is there never changes. Persisted, so it holds across coordinators.
    nodes: Identity = field(default_factory=Identity)
    # That of the run that wrote the checkpoint, without the parts that may differ; empty in a run that was not resumed.
    checkpoint: Identity = field(default_factory=Identity)
    # Of this run, as its checkpoints are to tell it (``Identity.lineage``). No node knows it.
    lineage: str = ""
    # Layer -> hash of the state that the first node built. Invariant: what is there never changes.
    initial: Mapping[int, str] = field(default_factory=dict)


def refusal(agreement: Agreement, node: str, identity: Identity) -> str:
    """Why a node of this identity cannot take part, or nothing."""
    for known, whose in (
        (agreement.checkpoint, "where the checkpoint was made"),
        (agreement.nodes, "on nodes before it"),
    ):
        from_checkpoint = known is agreement.checkpoint
        for part in (*PARTS, *OF_NODES):
            there, here = known.parts.get(part), identity.parts.get(part)
            if there and here and there != here:
                mend = _MENDS[part]
                if from_checkpoint:
                    mend = (
                        f"{'go on with the same' if part != 'hardware' else mend}, or let it differ with --allow {part}"
                    )
                return f"{_in_words(part, node, whose, there, here)}: {mend}"
        if known.outlines and identity.outlines:
            compared = [known.outlines, identity.outlines]
            # Nodes of one code freeze alike. Only the state that a checkpoint has may be of other parameters.
            if not (from_checkpoint and known.tells_frozen and identity.tells_frozen):
                compared = [tuple(text.replace(FROZEN, "") for text in outlines) for outlines in compared]
            differs = _layers_differ(node, whose, *compared)
            if differs:
                return f"{differs}: {'resume the same model' if from_checkpoint else _MENDS['code']}"
    return ""


def _in_words(part: str, node: str, whose: str, there: str, here: str) -> str:
    if part == "code":
        return f"{node} runs other code for this job than {whose} ({here[:12]}, not {there[:12]})"
    if part == "versions":
        return f"{node} has {here}, but {whose} it is {there}"
    if part == "hardware":
        return f"{node} computes on {here}, but {whose} it is {there}"
    if part == "configuration":
        return f"{_layer_that_differs(there, here)} is set otherwise on {node} than {whose}, as by a dropout rate"
    if part in ("samples", "evaluation"):
        what = "the dataset" if part == "samples" else "the evaluation's dataset"
        return f"{what} gives other samples on {node} ({here}) than {whose} ({there})"
    return _FILES.format(part, node, whose)


def _layer_that_differs(there: str, here: str) -> str:
    """``layer 3``, where the parts tell of each layer; see ``culm.pipeline.user_code.configuration``."""
    before, now = there.split(), here.split()
    if len(before) != len(now) or len(now) == 1:
        return "the model"
    return f"layer {next(i for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b)}"


def _layers_differ(node: str, whose: str, there: tuple[str, ...], here: tuple[str, ...]) -> str:
    if len(there) != len(here):
        return f"the model has {len(here)} layers on {node}, but {len(there)} {whose}"
    layer = next((i for i, (a, b) in enumerate(zip(there, here, strict=True)) if a != b), None)
    if layer is None:
        return ""
    before = there[layer].split(", ")
    other = [tensor for tensor in here[layer].split(", ") if tensor not in before]
    gone = [tensor for tensor in before if tensor not in here[layer].split(", ")]
    # One tensor is enough to see what differs: a layer may have thousands.
    shown = other[0] if other else "other tensors"
    return f"layer {layer} has {shown} on {node}, but {gone[0] if gone else 'none'} {whose}"


def joined(agreement: Agreement, identity: Identity, same_hardware: bool) -> Agreement:
    """With a node that takes part. What may differ with the hardware is nobody's identity."""
    identity = identity.compared(same_hardware)
    parts = {**identity.parts, **agreement.nodes.parts}  # a part that is known stays as it was told first
    outlined = agreement.nodes if agreement.nodes.outlines else identity
    return replace(agreement, nodes=replace(outlined, parts=parts))


def built(agreement: Agreement, node: str, initial: Mapping[int, str]) -> tuple[Agreement, str]:
    """With what a node says of the layers that it has built, and why it cannot stay, or nothing."""
    for layer in sorted(initial):
        known = agreement.initial.get(layer, initial[layer])
        if known != initial[layer]:
            what = f"{node} builds layer {layer} with other initial values than a node before it"
            return (
                agreement,
                f"{what} ({initial[layer][:12]}, not {known[:12]}): give every node the same weights files",
            )
    return replace(agreement, initial={**initial, **agreement.initial}), ""


def agreement_to(agreement: Agreement) -> dict[str, Any]:
    """As plain JSON-able data."""
    return {
        "nodes": identity_to(agreement.nodes),
        "checkpoint": identity_to(agreement.checkpoint),
        "lineage": agreement.lineage,
        "initial": {str(layer): digest for layer, digest in agreement.initial.items()},
    }


def agreement_from(content: Any) -> Agreement:
    if content is None:  # of a version before
        return Agreement()
    initial = {int(layer): str(digest) for layer, digest in content["initial"].items()}
    return Agreement(
        nodes=identity_from(content["nodes"]),
        checkpoint=identity_from(content["checkpoint"]),
        lineage=str(content.get("lineage", "")),
        initial=initial,
    )
