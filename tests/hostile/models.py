"""A small job's parts, good ones and bad ones, by the names that job files give them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset


def layers(width: int = 8, depth: int = 4) -> nn.Sequential:
    """[B, 6] to [B, 3]."""
    inner = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth - 2)]
    return nn.Sequential(nn.Linear(6, width), *inner, nn.Linear(width, 3))


def dataset(samples: int = 64) -> TensorDataset:
    """Inputs [6] and classes."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(samples, 6, generator=generator), torch.randint(0, 3, (samples,), generator=generator)
    )


class Wrapped(nn.Module):
    """Gives what a function makes of its input."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def _with(function: Any) -> list[nn.Module]:
    return [nn.Linear(6, 8), Wrapped(function), nn.Linear(8, 8), nn.Linear(8, 3)]


def gives_tuple() -> list[nn.Module]:
    return _with(lambda x: (x, x))


def gives_dict() -> list[nn.Module]:
    return _with(lambda x: {"x": x})


def gives_nested() -> list[nn.Module]:
    return _with(lambda x: [x, [x, {"x": x}]])


def gives_none() -> list[nn.Module]:
    return _with(lambda x: None)


def gives_number() -> list[nn.Module]:
    return _with(lambda x: 1.0)


def _raise(error: BaseException) -> Any:
    raise error


def layer_raises() -> list[nn.Module]:
    return _with(lambda x: _raise(ValueError("out of\nluck")))


def layer_exits() -> list[nn.Module]:
    return _with(lambda x: _raise(SystemExit(0)))


def layer_wide() -> list[nn.Module]:
    return [nn.Linear(7, 8), nn.Linear(8, 8), nn.Linear(8, 3)]


def lazy() -> list[nn.Module]:
    return [nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3)]


def lazy_constructors() -> list[Any]:
    return [lambda: nn.LazyLinear(8), nn.ReLU, lambda: nn.Linear(8, 3)]


def raises() -> list[nn.Module]:
    raise RuntimeError("no\nmodel [red]here[/red]")


def exits() -> list[nn.Module]:
    raise SystemExit(0)


def interrupts_nothing() -> None:
    return None


def empty() -> list[nn.Module]:
    return []


def of_numbers() -> list[Any]:
    return [1, 2, 3]


def of_strings() -> list[Any]:
    return ["Linear", "ReLU", "Linear"]


def generator() -> Iterator[nn.Module]:
    yield nn.Linear(6, 3)


def module_dict() -> nn.ModuleDict:
    return nn.ModuleDict({"a": nn.Linear(6, 3)})


def constructor_raises() -> list[Any]:
    return [lambda: nn.Linear(6, 8), lambda: _raise(OSError(28, "No space left")), lambda: nn.Linear(8, 3)]


def constructor_of_tensor() -> list[Any]:
    return [lambda: nn.Linear(6, 8), lambda: torch.zeros(1), lambda: nn.Linear(8, 3)]


class Items(Dataset[Any]):
    """A dataset of the same item again and again."""

    def __init__(self, item: Any, length: Any = 64) -> None:
        self._item = item
        self._length = length

    def __len__(self) -> int:
        return self._length  # type: ignore[no-any-return]

    def __getitem__(self, index: int) -> Any:
        return self._item() if callable(self._item) else self._item


def items_dict() -> Items:
    return Items({"input": torch.zeros(6), "target": torch.tensor(0)})


def items_single() -> Items:
    return Items(torch.zeros(6))


def items_triple() -> Items:
    return Items((torch.zeros(6), torch.tensor(0), torch.tensor(0)))


def items_nested() -> Items:
    return Items(((torch.zeros(6), torch.zeros(6)), torch.tensor(0)))


def items_dict_input() -> Items:
    return Items(({"x": torch.zeros(6)}, torch.tensor(0)))


def items_nested_target() -> Items:
    return Items((torch.zeros(6), (torch.tensor(0), torch.tensor(1))))


def items_strings() -> Items:
    return Items(("some", "text"))


def items_none() -> Items:
    return Items(None)


def items_raise() -> Items:
    return Items(lambda: _raise(OSError(5, "Input/output error")))


def items_exit() -> Items:
    return Items(lambda: _raise(SystemExit(3)))


def items_ragged() -> Items:
    count = iter(range(1, 10**6))
    return Items(lambda: (torch.zeros(next(count)), torch.tensor(0)))


def no_items() -> Items:
    return Items((torch.zeros(6), torch.tensor(0)), 0)


def bad_length() -> Items:
    return Items((torch.zeros(6), torch.tensor(0)), "many")


def negative_length() -> Items:
    return Items((torch.zeros(6), torch.tensor(0)), -3)


def a_list() -> list[int]:
    return []


def a_number() -> int:
    return 3


def iterable() -> Iterator[Any]:
    yield torch.zeros(6), torch.tensor(0)


def loss_of_two(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.stack([output.sum(), output.mean()])


def loss_number(output: torch.Tensor, target: torch.Tensor) -> float:
    return 1.0


def loss_none(output: torch.Tensor, target: torch.Tensor) -> None:
    return None


def loss_raises(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    raise KeyError("target")


def loss_exits(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    raise SystemExit("enough")


def loss_of_one(output: torch.Tensor) -> torch.Tensor:
    return output.sum()


def no_optimizer(params: Any) -> object:
    return object()


def optimizer_exits(params: Any) -> object:
    raise SystemExit(0)


not_callable = 3
