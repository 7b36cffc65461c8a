"""A held layer, the unit of state: parameters, buffers and optimizer state at one version."""

# What of a layer changes when:
#
#     parameters, optimizer   in ``apply``, at the commit, and in ``install``
#     accumulated gradients   in backwards; they are dropped when a step begins and when it is applied
#     buffers                 in forwards, as a BatchNorm's do. They are the step's to keep or to undo:
#                               every pipeline begins the step with the committed ones, and keeps its own (rule 21)
#                               a redo begins with them as they were at the step's beginning
#                               the reduced gradient carries those that changed, so every holder sets the same values
#                               a commit that skips the step puts them back
#
# A layer lies on the device. One that its node only stands by for may lie in the host's memory instead (``go_home``).
# It comes to the device for the moment of ``apply``: a processor's arithmetic has other bits than an accelerator's.
#
# So at any moment within a step the state "as at the step's beginning" is there: parameters and optimizer as they are,
# and the buffers of ``_buffers_before``. That is what ``export`` and ``lend`` give away.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import nn

from culm.pipeline.checkpoints.digest import hash_layer
from culm.pipeline.checkpoints.layer_file import AVERAGE
from culm.pipeline.clip import SKIPPED
from culm.pipeline.errors import JobError
from culm.pipeline.tensors.as_sent import as_sent, lay_out
from culm.pipeline.tensors.bits import same_bits
from culm.pipeline.tensors.values import Value
from culm.pipeline.ties import Addend
from culm.pipeline.tree import Block
from culm.pipeline.user_code.buffer_places import places_of_buffers, put
from culm.pipeline.user_code.entries import entries_of
from culm.pipeline.user_code.groups import Options
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.refusals import changes_buffer
from culm.pipeline.user_code.schedules import LayerSchedule
from culm.pipeline.user_code.sharing import tensors_of
from culm.stage_server.compute import blocks, optimizer_state
from culm.stage_server.compute.average import Average
from culm.stage_server.compute.changing import ChangingBuffers
from culm.stage_server.compute.device import Device, value_home
from culm.stage_server.compute.gradient_cut import GradientCut
from culm.stage_server.compute.loan import Loan
from culm.stage_server.compute.merging import Given, Merging
from culm.stage_server.compute.misfit import misfit
from culm.stage_server.compute.stepping import Stepping

Values = tuple[tuple[Addend, Value], ...]
BUFFERS_OF = 0  # the pipeline whose buffers are the next step's (rule 21)


@dataclass(frozen=True, slots=True)
class Workspace:
    """What a pipeline has of a layer while a step runs: its gradients so far, a parameter's each, and its buffers."""

    gradients: list[torch.Tensor | None]
    buffers: dict[str, torch.Tensor]


class HeldLayer:
    """One copy of one layer. Its weights change in ``apply`` and nowhere else."""

    def __init__(
        self,
        index: int,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        device: Device,
        options: Sequence[Options] = ({},),
        schedule: LayerSchedule | None = None,
        average: float | None = None,  # the decay of a moving average of the weights
        cut: GradientCut | None = None,  # None: into one bucket, with no other layer's parameters
    ) -> None:
        """``device``: where the module lies; ``options``: of each of the optimizer's groups, as the job gives them."""
        self.index = index
        self.module = module
        self.device = device
        self._parameters = tuple(module.named_parameters())  # torch goes through all of the module each time
        self._schedule = schedule
        self._made = optimizer_state.Made(
            parameters=[parameter for _, parameter in self._parameters],
            options=options,
            scheduled=schedule.keys if schedule is not None else frozenset(),
        )
        self.optimizer = optimizer  # None for a layer without parameters
        self._stepping = Stepping(index)
        self._average = Average(module, average) if average is not None else None
        # Buffers as at the running step's beginning; None before any work of the step, and where there are no buffers.
        self._buffers_before: dict[str, torch.Tensor] | None = None
        # Whose gradients and buffers are the module's own at this moment; None before any work of the step. Those of
        # the other pipelines are set aside. Invariant: the one in place is not among them.
        self._in_place: int | None = None
        self._aside: dict[int, Workspace] = {}
        self._merging = Merging()
        self.cut = cut or GradientCut(index, module)
        self._buffer_places = places_of_buffers(module)
        self.changing = ChangingBuffers(index, module, self._buffer_places)
        self._loans: list[Loan] = []  # lent since parameters last changed; some have ended since
        # The optimizer's state, as ``optimizer_state`` names it, while the layer lies in the host's memory; else None.
        self._parked: list[tuple[str, torch.Tensor]] | None = None

    @staticmethod
    def build(source: ModelSource, index: int, device: Device) -> "HeldLayer":
        """The layer at its initial state, which is the same on every node."""
        module = lay_out(source.build(index).to(device.place))
        optimizer, options, schedule = source.optimizer_of(index, module)
        cut = GradientCut(index, module, source.shared_with(index), source.shared_places(index))
        return HeldLayer(index, module, optimizer, device, options, schedule, source.average, cut)

    @property
    def is_home(self) -> bool:
        """Whether it lies in the host's memory, though it is computed with elsewhere."""
        return self._parked is not None

    def go_home(self) -> None:
        """It lies in the host's memory from now on. Where the device computes in that nothing changes."""
        if self.is_home or self.device.in_host:
            return
        # Before the parameters move: what lies beside them on the device is told from what lies in the host's memory.
        entries = list(optimizer_state.exported(self.optimizer, self._made)) if self.optimizer is not None else []
        self._move(self.device.home)
        parked = [(name, self.device.home(tensor)) for name, tensor in entries]
        self.device.copied().wait()
        if self.optimizer is not None:
            self.optimizer.state.clear()
        self._parked = parked

    def come_here(self) -> None:
        """It lies on the device from now on."""
        if self._parked is None:
            return
        self._move(self.device.here)
        if self.optimizer is not None:
            optimizer_state.install(self.optimizer, self._made, self._parked)
        self._parked = None

    def _move(self, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
        # Parameters stay the objects that they are: the optimizer and the stage know them.
        for _, parameter in self._parameters:
            parameter.data = move(parameter.data)
        if self._average is not None:
            self._average.move(move)
        for name, buffer in list(self.module.named_buffers()):
            moved = move(buffer)
            put(self._buffer_places[name], moved)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """For the moment: afterwards it lies where it did."""
        was_home = self.is_home
        self.come_here()
        yield
        if was_home:
            self.go_home()

    def begin_step(self, pipeline: int) -> None:
        """The pipeline begins the step: without gradients, and with the buffers of the step's beginning."""
        if self._buffers_before is None and self._buffer_places:
            self._buffers_before = {name: buffer.clone() for name, buffer in self._buffers().items()}
        self.enter(pipeline)
        self._drop_gradients()
        self._merging.drop(pipeline)
        self._restore(self._buffers_before or {})

    def enter(self, pipeline: int) -> None:
        """Puts the pipeline's gradients and buffers in place: whoever runs the module for it comes by here."""
        if pipeline == self._in_place:
            return
        own = self._aside.pop(pipeline, None) or self._at_the_beginning()
        if self._in_place is not None:
            self._aside[self._in_place] = Workspace(self._in_place_gradients(), self._buffers())
        self._in_place = pipeline
        for (_, parameter), gradient in zip(self._parameters, own.gradients, strict=True):
            parameter.grad = gradient
        # The tensors are exchanged and not written over: graphs of the other pipeline's microbatches refer to them.
        for name, tensor in own.buffers.items():
            put(self._buffer_places[name], tensor)

    @contextmanager
    def with_committed_buffers(self) -> Iterator[None]:
        """For the moment the module has the buffers of the step's beginning; what is written into them is dropped."""
        # Graphs of the step's forwards refer to the tensors that are in place, so these are exchanged.
        own = self._buffers()
        for name, tensor in (self._buffers_before or {}).items():
            put(self._buffer_places[name], tensor.clone())
        yield
        for name, tensor in own.items():
            put(self._buffer_places[name], tensor)

    def _at_the_beginning(self) -> "Workspace":
        """Of a pipeline that has run nothing of the step."""
        # Before anybody has run anything the module's own buffers are the committed ones, and stay in place.
        committed = self._buffers_before if self._in_place is not None and self._buffers_before else {}
        return Workspace([None] * len(self._parameters), {name: tensor.clone() for name, tensor in committed.items()})

    def _buffers(self) -> dict[str, torch.Tensor]:
        """By name. Raises JobError where a forward has made or dropped one."""
        own = dict(self.module.named_buffers())
        if own.keys() != self._buffer_places.keys():
            raise self._changes_buffer(min(own.keys() ^ self._buffer_places.keys()))
        return own

    def _changes_buffer(self, name: str) -> JobError:
        return changes_buffer(f"layer {self.index} ({type(self.module).__name__})", name)

    def _end_step(self) -> None:
        """Drops what every pipeline has of the step."""
        self._drop_gradients()
        self._aside.clear()
        self._merging.clear()
        self._in_place = self._buffers_before = None

    def _drop_gradients(self) -> None:
        for _, parameter in self._parameters:
            parameter.grad = None

    def _in_place_gradients(self) -> list[torch.Tensor | None]:
        return [p.grad for _, p in self._parameters]

    def has_gradients(self) -> bool:
        """Whether any are in place."""
        return any(p.grad is not None for _, p in self._parameters)

    def has_changed_buffers(self) -> bool:
        """Whether forwards of the running step have changed any, of the pipeline that is in place."""
        return bool(self._changed(self._buffers()))

    def _changed(self, now: Mapping[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
        """Those of a pipeline's buffers that its forwards have changed. Raises JobError where the shape has changed."""
        # By bits: a holder that is not told of a -0.0 keeps its 0.0.
        before = self._buffers_before or {}
        for name, buffer in now.items():
            if (buffer.shape, buffer.dtype) != (before[name].shape, before[name].dtype):
                raise self._changes_buffer(name)
        return [(name, buffer) for name, buffer in now.items() if not same_bits(buffer, before[name])]

    def merge(
        self,
        block: Block,
        pipelines: int,
        tallies: tuple[float, ...] = (),
        norms: bool = False,
        leaves: bool = True,
        given: Given = (),
    ) -> Values:
        """A block's gradient: what its pipelines accumulated, as the tree adds it, and pipeline 0's buffers (rule 21).

        ``pipelines``: how many the tree is over; ``tallies``: those of the block, which ride with it; ``norms``: of all
        pipelines, where it is the reduced gradient. ``leaves``: else it is kept, to be merged into a larger block.
        ``given``: what has left in smaller blocks, of all layers. An addend of which that is missing is not merged.
        """
        given = [each for each in given if each[0] in self.cut.addends]
        found = self._merging.merge(block, pipelines, lambda p: dict(self.cut.pieces(self._taken(p))), leaves, given)
        if (first := self.cut.addends[0]) in found:
            found[first] = replace(found[first], tallies=tallies)
        is_sum = block == Block(0, pipelines)
        return tuple((a, self.whole(x, norms) if is_sum and not self.cut.is_shared(a) else x) for a, x in found.items())

    def _taken(self, pipeline: int) -> Value:
        """What a pipeline has accumulated; its next backward begins with nothing."""
        if pipeline in (BUFFERS_OF, self._in_place):
            self.enter(pipeline)
            own = Workspace(self._in_place_gradients(), self._buffers())
            self._drop_gradients()
        else:
            own = self._aside.pop(pipeline)
        counts = own.buffers if pipeline == BUFFERS_OF else self.changing.not_exchanged()
        changed = self._changed({name: own.buffers[name] for name in counts})
        self.changing.refuse_late([name for name, _ in changed])
        named = zip((name for name, _ in self._parameters), own.gradients, strict=True)
        tensors = [(f"grad.{name}", as_sent(gradient.detach())) for name, gradient in named if gradient is not None]
        if pipeline == BUFFERS_OF:
            tensors += [(f"buffer.{name}", buffer.clone()) for name, buffer in changed]
        return Value(tuple(tensors))

    def sum_up(self, uses: Iterable[Mapping[Block, Value]], pipelines: int, with_norm: bool) -> Value:
        """A bucket's reduced gradient, of blocks that cover all pipelines, for each layer that adds to it in order."""
        totals = [blocks.merged(pieces, Block(0, pipelines), pipelines) for pieces in uses]
        return self.whole(reduce(blocks.added, totals), with_norm)

    def whole(self, value: Value, with_norm: bool) -> Value:
        """A value over all pipelines as the reduced gradient."""
        return blocks.whole(value, tuple(name for name, _ in self._parameters), with_norm)

    def apply(self, gradient: Value, scale: float, step: int) -> None:
        """One optimizer step with ``scale`` times the reduced gradient; the gradient itself is left as it is.

        ``step``: its number, by which the schedule goes.
        A step that is ``SKIPPED`` leaves everything as at its beginning: weights, buffers, the optimizer's state.
        """
        if scale == SKIPPED:  # no parameter changes, so loans go on in live memory
            self._restore(self._buffers_before or {})
            self._end_step()
            return
        self._keep_loans()
        with self._on_device():
            if self.optimizer is not None and self._schedule is not None:
                for group, options in zip(self.optimizer.param_groups, self._schedule.at(step), strict=True):
                    group.update(options)
            self._apply(gradient, scale)

    def _apply(self, gradient: Value, scale: float) -> None:
        given = dict(gradient.tensors)
        for name, parameter in self._parameters:
            grad = given.get(f"grad.{name}")
            if grad is None:
                parameter.grad = None
            else:
                # Flat, where it has come in buckets. Another holder's was sent.
                grad = as_sent(self.device.here(grad).view_as(parameter))
                if grad.stride() != parameter.stride():  # an optimizer that is fused goes by memory, not by elements
                    grad = torch.empty_like(parameter).copy_(grad)
                # Never changed in place: the outbox keeps the gradient, and other holders may still get it (rule 5).
                # So it is copied, unless the optimizer has been seen to leave gradients as they are.
                kept = self._stepping.writes_gradients is False
                parameter.grad = grad * scale if scale != 1.0 else grad if kept else grad.clone()
        # An owner's forwards have changed its buffers, a standby's have not, and an heir may have run only some again.
        # All go back to the step's beginning, and then set what the gradient carries.
        self._restore(self._buffers_before or {})
        self._restore({n.removeprefix("buffer."): t for n, t in given.items() if n.startswith("buffer.")})
        if self.optimizer is not None:
            self._stepping.step(self.optimizer, [p.grad for _, p in self._parameters if p.grad is not None])
        if self._average is not None:
            self._average.update()
        self._end_step()

    def _restore(self, buffers: dict[str, torch.Tensor]) -> None:
        if not buffers:
            return
        own = self._buffers()
        with torch.no_grad():
            for name, buffer in buffers.items():
                own[name].copy_(buffer)

    def digest(self) -> str:
        """Tells whether two nodes have the same values: sha256 over parameters and buffers, cut to 64 bits."""
        return hash_layer(self.index, dict(tensors_of(self.module)))[:16]

    def export(self) -> Value:
        """A copy of all state as at the step's beginning."""
        # What a card's optimizer keeps in the host's memory, such as a count, is live there and copied as well.
        state = [(name, tensor.clone() if tensor.is_cpu else tensor) for name, tensor in self.state().tensors]
        copy = value_home(self.device, Value(tuple(state)))
        self.device.copied().wait()
        return copy

    def lend(self) -> Loan:
        """All state as at the step's beginning, to be read from where it is; from a copy, if it is on a card."""
        if not self.device.in_host:
            return Loan(self.export())
        loan = Loan(self.state())
        self._loans.append(loan)
        return loan

    def _keep_loans(self) -> None:
        """Parameters and optimizer state are about to change."""
        for loan in self._loans:
            loan.keep()
        self._loans.clear()

    def state(self) -> Value:
        """The tensors themselves, except for buffers: forwards change those within a step."""
        before = self._buffers_before or {}
        of_buffers = {id(b): before.get(n, b).detach().clone() for n, b in self.module.named_buffers()}
        tensors = [(name, of_buffers.get(id(t), t.detach())) for name, t in entries_of(self.module).items()]
        if self._parked is not None:
            tensors.extend(self._parked)
        elif self.optimizer is not None:
            tensors.extend(optimizer_state.exported(self.optimizer, self._made))
        return Value((*tensors, *(self._average.entries() if self._average is not None else ())))

    def install(self, state: Value) -> None:
        """Takes over a copy that ``export`` made elsewhere. Raises JobError for one of another layer."""
        wrong = misfit(self.module, state)
        if wrong:
            what = f"a copy of layer {self.index} ({type(self.module).__name__}) does not fit: {wrong}"
            raise JobError(what, "model.layers", "give every node the same model, and resume with it")
        self._keep_loans()
        with self._on_device():
            self._install(state)

    def _install(self, state: Value) -> None:
        own = entries_of(self.module)
        optimizer: list[tuple[str, torch.Tensor]] = []
        with torch.no_grad():
            for name, tensor in state.tensors:
                if name in own:
                    own[name].copy_(tensor)
                elif not name.startswith(f"{AVERAGE}."):
                    optimizer.append((name, tensor))
        if self._average is not None:
            self._average.install(state.tensors)
        if self.optimizer is not None:
            optimizer_state.install(self.optimizer, self._made, optimizer)
        self._end_step()
