"""Optimizers that keep their state where a copy may miss it, and such that keep it well."""

from typing import Any

import torch


class Plain(torch.optim.Optimizer):
    """Gradient descent whose rate depends on what ``_kept`` gives; each class keeps that in a place of its own."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def _kept(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        return 0.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"] / (1.0 + self._kept(p, group)))


class ObjectsInList(Plain):
    def _kept(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        history = self.state[parameter].setdefault("history", [])
        history.append((parameter.detach().abs().sum(), object()))
        return float(history[-1][0] + len(history))


class TensorsInList(Plain):
    """As SOAP has them: a list that grows, of tensors and of lists, and a dict."""

    def _kept(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        state = self.state[parameter]
        history = state.setdefault("history", [[]])
        history.append(parameter.detach().abs().sum())
        state.setdefault("named", {})[len(history) % 2] = (history[-1].double(), None)
        return float(sum(history[1:]) + state["named"][len(history) % 2][0])


class Attribute(Plain):
    """Counts beside its state."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.count = 0

    def _kept(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        self.count += 1
        return float(self.count)


class EveryHundred(Attribute):
    """Looks at its count only now and then: a short trial sees no other bits."""

    def _kept(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        return super()._kept(parameter, group) // 1000


class Scheduled(Plain):
    """Steps a scheduler of its own, which counts for itself."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self, lambda epoch: 1.0 / (1.0 + epoch))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.scheduler.step()


class Noisy(Plain):
    def _kept(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        return float(torch.rand(()))


class Shares(Plain):
    """One tensor counts for all parameters."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        count = torch.zeros(())
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["count"] = count

    def _kept(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        count: torch.Tensor = self.state[parameter]["count"]
        return float(count.add_(1.0))


class Couples(Plain):
    """The rate of every parameter follows from all gradients that the optimizer has."""

    def _kept(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        return sum(float(p.grad.abs().sum()) for p in group["params"] if p.grad is not None)


class PlainData(Plain):
    """Tuples, lists, dicts, text and long integers, in state and in the group: all of it can be copied."""

    def _kept(self, parameter: torch.Tensor, group: dict[str, Any]) -> float:
        state = self.state[parameter]
        state["history"] = [*state.get("history", []), (len(state), 0.1 * len(state.get("history", [])), None)][-3:]
        state["seen"] = {**state.get("seen", {}), len(state["history"]): "a", "big": 2**70 + len(state["history"])}
        total: float = group["last"][0] + sum(x[1] for x in state["history"]) + len(state["seen"])
        return total

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["last"] = (group.get("last", (0.0,))[0] + 1.0 / 3.0, "x")
        super().step(closure)
