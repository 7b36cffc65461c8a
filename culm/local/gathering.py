"""The final weights, from the nodes that hold them."""

import time
from collections.abc import Callable

import grpc
import torch

from culm.pipeline.checkpoints.layer_file import read_layer
from culm.pipeline.checkpoints.manifest import CheckpointCorrupt, OriginUnseen, read_origin
from culm.pipeline.errors import JobError
from culm.pipeline.origin import Origin
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.stage_server.streams.fetch import fetch_layers
from culm.terminal.outcome import LayerState, RunFailed

POLL_SECONDS = 0.05
PATIENCE = 60.0  # seconds: an owner may be lost while it is asked, and its heir has to be found


def gather(stub: CoordinatorStub, check: Callable[[], None]) -> list[LayerState]:
    """The final state dicts of all layers, each from its stage's present owner.

    Where the nodes were let go they are read from the checkpoint of the last step. Raises RunFailed.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        gathered: dict[int, tuple[int, Value]] = {}

        def take(layer: int, version: int, state: Value, into: dict[int, tuple[int, Value]] = gathered) -> None:
            into[layer] = (version, state)

        try:
            status = stub.GetStatus(pb.GetStatusRequest(), timeout=10.0)
            if status.phase == "done" and not status.plan.stages:
                return _from_checkpoint(status)
            address = {m.node: m.address for m in status.plan.members}
            for stage in status.plan.stages:
                layers = tuple(range(stage.first_layer, stage.end_layer))
                fetch_layers(address[stage.owners[0]], layers, status.plan.era, take, at_once=True)
        except grpc.RpcError:
            gathered.clear()
        # An owner may be lost while it is asked, or may not have applied the last commit yet: then all are asked again.
        # The closing step of a run that evaluates changes none: its version is one more.
        if gathered and all(version >= status.steps for version, _ in gathered.values()):
            return [(layer, _state_dict(state)) for layer, (_, state) in sorted(gathered.items())]
        if time.monotonic() > deadline:
            raise RunFailed(
                f"the owners of the stages did not give the final weights in {PATIENCE:g} s; see the nodes' logs"
            )
        check()
        time.sleep(POLL_SECONDS)


def _from_checkpoint(status: pb.GetStatusResponse) -> list[LayerState]:
    folder = status.checkpoint_folder
    if status.checkpoint != status.steps:
        newest = f"; the newest checkpoint is of step {status.checkpoint}: {folder}" if folder else ""
        raise RunFailed(f"the nodes have gone: {status.detail}{newest}")
    try:
        manifest = read_origin(Origin(status.checkpoint, folder, status.checkpoint_sha256))
        return [(layer, _state_dict(read_layer(folder, manifest, layer))) for layer in sorted(manifest.files)]
    except OriginUnseen as error:
        why = f"the nodes have gone, and this machine does not see the run's last checkpoint: {error}"
        mend = "run culm weights on a machine that shares the folder, unless another run has written there since"
        raise RunFailed(f"{why}; {mend}") from error
    except (CheckpointCorrupt, JobError, OSError) as error:
        why = f"the nodes have gone, and the checkpoint {folder} cannot be read here: {error}"
        raise RunFailed(f"{why}; run culm checkpoint export on a machine that reaches it") from error


def _state_dict(state: Value) -> dict[str, torch.Tensor]:
    entries = {}
    for name, tensor in state.tensors:
        kind, _, rest = name.partition(".")
        if kind in ("parameter", "buffer"):
            entries[rest] = tensor
    return entries
