"""Pytrees: what a layer takes and returns, a tensor or containers of tensors, as tensors in order and a structure."""

# A pytree is a tensor, or a tuple, list, dict, named tuple or dataclass of pytrees. Between the tensors there may be
# None, truth values, numbers and words. A layer gives (hidden, {"mask": mask, "bias": None}):
#
#     tensors      hidden, mask
#     structure    ["tuple", 0, ["dict", ["mask", "bias"], 1, null]]
#
# A tensor that stands at two places is one, under one number: in one process its gradient is one sum too, over all
# uses, and two sums that are added later would have other bits.
#
# A structure goes to another node as JSON, which names classes. A node takes only those that its own code has imported
# already, and only named tuples and dataclasses; whatever else a peer says there is refused (rule 18).

import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch

Pytree = Any  # see above
Structure = Any  # what JSON can say: see above

MOST_CHARACTERS = 1 << 16  # of a structure as text
MOST_LEVELS = 32  # of containers within containers
MOST_TENSORS = 1 << 12
PLAIN = (bool, int, float, str)
DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict}


class NotAPytree(TypeError):
    """The text names what no pytree may have."""


def parts_of(tree: Pytree) -> tuple[list[torch.Tensor], Structure]:
    """The tensors, each once, in the order in which they first come, and the structure. Raises NotAPytree."""
    if isinstance(tree, torch.Tensor):  # as most are
        return [tree], 0
    numbers: dict[int, int] = {}
    tensors: list[torch.Tensor] = []

    def number_of(tensor: torch.Tensor) -> int:
        if id(tensor) not in numbers:
            numbers[id(tensor)] = len(tensors)
            tensors.append(tensor)
        return numbers[id(tensor)]

    structure = _structure(tree, number_of, 0)
    if len(tensors) > MOST_TENSORS:
        raise NotAPytree(f"a container of {len(tensors)} tensors ({MOST_TENSORS} at most)")
    return tensors, structure


def tensors_in(tree: Pytree) -> list[torch.Tensor]:
    """The tensors alone, each once. Raises NotAPytree."""
    return [tree] if isinstance(tree, torch.Tensor) else parts_of(tree)[0]


def rebuilt(structure: Structure, tensors: list[torch.Tensor]) -> Pytree:
    """The pytree of ``parts_of``. Raises NotAPytree where a class is unknown here, or takes no such values."""
    if isinstance(structure, int):
        return tensors[structure]
    if structure is None:
        return None
    kind, *rest = structure
    if kind == "is":
        return rest[0]
    if kind in ("tuple", "list"):
        parts = [rebuilt(each, tensors) for each in rest]
        return tuple(parts) if kind == "tuple" else parts
    if kind in DICTS:
        return DICTS[kind](zip(rest[0], (rebuilt(each, tensors) for each in rest[1:]), strict=True))
    known = _known(kind, rest[0], rest[1])
    parts = [rebuilt(each, tensors) for each in rest[2:]]
    # Not by its constructor: what that does it would do once more for each cut.
    if kind == "named":
        return tuple.__new__(known, parts)
    made = object.__new__(known)
    for name, part in zip(rest[1], parts, strict=True):
        object.__setattr__(made, name, part)
    return made


def mapped(change: Callable[[torch.Tensor], torch.Tensor], tree: Pytree) -> Pytree:
    """The pytree with each of its tensors changed, once. Raises NotAPytree."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    tensors, structure = parts_of(tree)
    return rebuilt(structure, [change(tensor) for tensor in tensors])


def as_text(structure: Structure) -> str:
    """As JSON; nothing for a tensor without a container, as most are. Raises NotAPytree for one that is too long."""
    if structure == 0:
        return ""
    text = json.dumps(structure, separators=(",", ":"))
    if len(text) > MOST_CHARACTERS:
        raise NotAPytree(f"a container of {len(text)} characters beside its tensors ({MOST_CHARACTERS} at most)")
    return text


def refuse_unsendable(output: Pytree, target: Pytree = None) -> None:
    """Raises NotAPytree where the two would not come to another stage together as they are."""
    tensors, structure = parts_of((output, target))
    as_text(structure)
    for kind in map(type, tensors):
        if kind not in (torch.Tensor, torch.nn.Parameter):  # the next layer may act on its class
            raise NotAPytree(f"a {kind.__name__} (.as_subclass(torch.Tensor) makes it plain)")


@lru_cache(maxsize=16)  # of one run's activations all have the same; nobody changes a structure
def of_text(text: str, count: int) -> Structure:
    """A structure from elsewhere, over so many tensors. Raises ValueError for what ``as_text`` never says."""
    if not text and count == 1:
        return 0
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"the structure has {len(text)} characters; {MOST_CHARACTERS} at most are accepted")
    if count > MOST_TENSORS:
        raise ValueError(f"the structure has {count} tensors; {MOST_TENSORS} at most are accepted")
    try:
        structure = json.loads(text) if text else 0
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the structure {text[:80]!r} is no JSON") from error
    found = list(_checked(structure, 0))
    if set(found) != set(range(count)):
        raise ValueError(f"the structure {text[:80]!r} is not one of {count} tensors")
    return structure


def _structure(tree: Pytree, number_of: Callable[[torch.Tensor], int], level: int) -> Structure:
    if level > MOST_LEVELS:
        raise NotAPytree(f"more than {MOST_LEVELS} containers within one another")
    if isinstance(tree, torch.Tensor):
        return number_of(tree)
    if tree is None:
        return None
    if type(tree) in PLAIN:
        return ["is", tree]

    def all_of(parts: Any) -> list[Structure]:
        return [_structure(each, number_of, level + 1) for each in parts]

    kind: Any = type(tree)
    if kind in (tuple, list):
        return [kind.__name__, *all_of(tree)]
    if _is_record(kind):
        names = [field.name for field in fields(kind)]
        _refuse_others(tree, names)
        return ["dataclass", _path_of(kind), names, *all_of(getattr(tree, name) for name in names)]
    if _is_named_tuple(kind):
        _refuse_others(tree, [])
        return ["named", _path_of(kind), list(kind._fields), *all_of(tree)]
    word = next((word for word, known in DICTS.items() if kind is known), None)
    if word is None:
        raise NotAPytree(f"a {kind.__name__}")
    odd = [key for key in tree if type(key) not in (str, int)]
    if odd:
        raise NotAPytree(f"a dict with the key {odd[0]!r:.80}")
    return [word, list(tree), *all_of(tree.values())]


def _checked(structure: Structure, level: int) -> Iterator[int]:
    """The numbers of tensors. Raises ValueError for what no structure has."""
    wrong = ValueError(f"{str(structure)[:80]!r} is no part of a structure")
    if level > MOST_LEVELS:
        raise ValueError(f"the structure has more than {MOST_LEVELS} containers within one another")
    if type(structure) is int and structure >= 0:
        yield structure
        return
    if structure is None:
        return
    if type(structure) is not list or not structure or type(structure[0]) is not str:
        raise wrong
    kind, *rest = structure
    if kind == "is":
        if len(rest) != 1 or type(rest[0]) not in PLAIN:
            raise wrong
        return
    if kind in DICTS:
        names, parts = rest[:1], rest[1:]
        if not _are_keys(names, len(parts), (str, int)):
            raise wrong
    elif kind in ("named", "dataclass"):
        names, parts = rest[1:2], rest[2:]
        if type(rest[0] if rest else None) is not str or not _are_keys(names, len(parts), (str,)):
            raise wrong
    elif kind in ("tuple", "list"):
        parts = rest
    else:
        raise wrong
    for part in parts:
        yield from _checked(part, level + 1)


def _are_keys(names: list[Any], count: int, kinds: tuple[type, ...]) -> bool:
    if len(names) != 1 or type(names[0]) is not list or len(names[0]) != count:
        return False
    return all(type(name) in kinds for name in names[0]) and len(set(names[0])) == count


def _is_record(kind: type) -> bool:
    """Whether it is a dataclass, and no container beside."""
    return is_dataclass(kind) and not issubclass(kind, (tuple, list, dict))


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def _path_of(kind: type) -> str:
    path = f"{kind.__module__}:{kind.__qualname__}"
    if _at(path) is not kind:
        raise NotAPytree(f"a {kind.__qualname__}, which {kind.__module__} does not have under this name")
    return path


def _at(path: str) -> Any:
    module, _, names = path.partition(":")
    found: Any = sys.modules.get(module)
    for name in names.split("."):
        found = getattr(found, name, None)
    return found


def _refuse_others(tree: Any, names: list[str]) -> None:
    """Raises NotAPytree for attributes beside the fields: they would not come along."""
    others = sorted(getattr(tree, "__dict__", {}).keys() - set(names))
    if others:
        raise NotAPytree(f"a {type(tree).__name__} with {others[0]}, which is none of its fields")


def _known(kind: str, path: str, names: list[str]) -> Any:
    """The class, if this process has it, with these fields. Its own code brings in those that its layers return."""
    found: Any = _at(path)
    own: list[str] | None = None
    if isinstance(found, type):
        if kind == "dataclass" and _is_record(found):
            own = [field.name for field in fields(found)]
        elif kind == "named" and _is_named_tuple(found):
            own = list(getattr(found, "_fields", ()))
    if own != names:
        raise NotAPytree(f"a {path[:200]}, which is no {kind} here, or one of other fields")
    return found
