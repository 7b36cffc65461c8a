"""A held layer, the unit of state: parameters, buffers and optimizer state at one version."""

import torch
from torch import nn

from pipeline.model import ModelSource
from pipeline.values import Value
from stage_server.loan import Loan


class HeldLayer:
    """One copy of one layer. Its weights change in ``apply`` and nowhere else."""

    def __init__(self, index: int, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.index = index
        self.module = module
        self._parameters = tuple(module.named_parameters())  # torch goes through all of the module each time
        self._optimizer = optimizer  # None for a layer without parameters
        self._buffers_before: dict[str, torch.Tensor] | None = None
        self._loans: list[Loan] = []

    @staticmethod
    def build(source: ModelSource, index: int, device: torch.device) -> "HeldLayer":
        """The layer at its initial state, which is the same on every node."""
        module = source.build(index).to(device)
        parameters = [p for p in module.parameters() if p.requires_grad]
        return HeldLayer(index, module, source.optimizer(parameters) if parameters else None)

    def begin_step(self) -> None:
        """Drops accumulated gradients; buffers go back to the step's beginning if work of the step changed them."""
        self._drop_gradients()
        if self._buffers_before is not None:
            self._restore(self._buffers_before)
        else:
            self._buffers_before = {name: buffer.clone() for name, buffer in self.module.named_buffers()} or None

    def _drop_gradients(self) -> None:
        for _, parameter in self._parameters:
            parameter.grad = None

    def has_changed_buffers(self) -> bool:
        """Whether forwards of the running step have changed any."""
        before = self._buffers_before or {}
        return any(not torch.equal(buffer, before[name]) for name, buffer in self.module.named_buffers())

    def gradient(self, losses: tuple[float, ...] = (), with_norm: bool = True) -> Value:
        """The reduced gradient: what was accumulated, and the buffers that the step's forwards changed.

        ``with_norm``: else its squared norm is 0.0, which takes no look at every element.
        """
        gradients = [(f"grad.{name}", p.grad.detach()) for name, p in self._parameters if p.grad is not None]
        tensors = list(gradients)
        before = self._buffers_before or {}
        for name, buffer in self.module.named_buffers():
            if not torch.equal(buffer, before[name]):
                tensors.append((f"buffer.{name}", buffer.clone()))
        return Value(tuple(tensors), squared_norm([t for _, t in gradients]) if with_norm else 0.0, losses)

    def apply(self, gradient: Value, scale: float) -> None:
        """One optimizer step with ``scale`` times the reduced gradient; the gradient itself is left as it is."""
        self._keep_loans()
        given = dict(gradient.tensors)
        for name, parameter in self._parameters:
            grad = given.get(f"grad.{name}")
            if grad is None:
                parameter.grad = None
            else:
                grad = grad.to(parameter.device)
                parameter.grad = grad * scale if scale != 1.0 else grad
        if self._buffers_before is not None:
            self._restore(self._buffers_before)
        self._restore({n.removeprefix("buffer."): t for n, t in given.items() if n.startswith("buffer.")})
        if self._optimizer is not None:
            self._optimizer.step()
        self._drop_gradients()
        self._buffers_before = None

    def _restore(self, buffers: dict[str, torch.Tensor]) -> None:
        own = dict(self.module.named_buffers())
        with torch.no_grad():
            for name, buffer in buffers.items():
                own[name].copy_(buffer)

    def export(self) -> Value:
        """A copy of all state as at the step's beginning."""
        state = self._state()
        return Value(tuple((name, tensor.to("cpu", copy=True)) for name, tensor in state.tensors))

    def lend(self) -> Loan:
        """All state as at the step's beginning, to be read from where it is."""
        loan = Loan(self._state())
        self._loans.append(loan)
        return loan

    def _keep_loans(self) -> None:
        """Parameters and optimizer state are about to change."""
        for loan in self._loans:
            loan.keep()
        self._loans.clear()

    def _state(self) -> Value:
        """The tensors themselves, except for buffers: forwards change those within a step."""
        own = self.module.state_dict(keep_vars=True)
        tensors = [(f"parameter.{n}", t.detach()) for n, t in own.items() if isinstance(t, nn.Parameter)]
        buffers = self._buffers_before or dict(self.module.named_buffers())
        for name, buffer in buffers.items():
            kind = "buffer" if name in own else "transient"
            tensors.append((f"{kind}.{name}", buffer.detach().clone()))
        for index, parameter in enumerate(self._optimized()):
            assert self._optimizer is not None
            for name, entry in self._optimizer.state.get(parameter, {}).items():
                tensors.append(_exported(f"{index}.{name}", entry, parameter.device))
        for index, group in enumerate(self._optimizer.param_groups if self._optimizer is not None else ()):
            for name, entry in group.items():
                if isinstance(entry, bool | int | float):  # some optimizers count and adapt there
                    tensors.append((f"group.{index}.{name}", _number(entry)))
        return Value(tuple(tensors))

    def _optimized(self) -> list[torch.Tensor]:
        """The optimizer's parameters in its own order."""
        groups = self._optimizer.param_groups if self._optimizer is not None else []
        return [parameter for group in groups for parameter in group["params"]]

    def install(self, state: Value) -> None:
        """Takes over a copy that ``export`` made elsewhere."""
        self._keep_loans()
        own = dict(self._parameters)
        optimized = self._optimized()
        if self._optimizer is not None:
            self._optimizer.state.clear()
        buffers: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            for name, tensor in state.tensors:
                kind, _, rest = name.partition(".")
                if kind == "parameter":
                    own[rest].copy_(tensor)
                elif kind in ("buffer", "transient"):
                    buffers[rest] = tensor
                else:
                    assert self._optimizer is not None, "optimizer state for a layer without parameters"
                    index, _, entry = rest.partition(".")
                    if kind == "group":
                        self._optimizer.param_groups[int(index)][entry] = tensor.item()
                        continue
                    parameter = optimized[int(index)]
                    # Placed as it was, never through load_state_dict: that casts it to the parameter's dtype.
                    held = tensor.item() if kind == "number" else tensor.clone()
                    if kind == "optimizer":
                        held = tensor.to(parameter.device, copy=True)
                    self._optimizer.state[parameter][entry] = held
        self._restore(buffers)
        self._buffers_before = None
        self._drop_gradients()


def _exported(name: str, entry: object, device: torch.device) -> tuple[str, torch.Tensor]:
    if isinstance(entry, torch.Tensor):
        kind = "optimizer" if entry.device == device else "host"  # such as a step count beside a parameter on a GPU
        return f"{kind}.{name}", entry.detach()
    if isinstance(entry, bool | int | float):
        return f"number.{name}", _number(entry)
    raise TypeError(f"optimizer state {name} is a {type(entry).__name__}: only tensors and numbers can be copied")


def _number(entry: bool | int | float) -> torch.Tensor:
    kind = torch.bool if isinstance(entry, bool) else torch.int64 if isinstance(entry, int) else torch.float64
    return torch.tensor(entry, dtype=kind)


def squared_norm(gradients: list[torch.Tensor]) -> float:
    """Squared L2 norm over all elements, in float64, tensor by tensor in the order given."""
    total = 0.0
    for gradient in gradients:
        real = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        norm = float(torch.linalg.vector_norm(real, dtype=torch.float64))
        total += norm * norm
    return total
