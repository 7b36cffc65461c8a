"""An object of a script's by the path under which every process imports it: "module:qualified name"."""

# A job names code, and each node imports it anew. So an object can stand in a job only where the import gives that very
# object. Of a script that is run as a program there are two: its functions belong to __main__, and nodes import the
# file under its own name, without what stands under ``if __name__ == "__main__"``. There the code has to be the same,
# and so have the numbers and texts that it finds at the top level of either.

import ast
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from culm.pipeline.errors import JobError
from culm.pipeline.user_code.edited import codes_in, codes_of
from culm.pipeline.user_code.groups import is_plain_data
from culm.pipeline.user_code.imports import load_callable

MEND = (
    "write it into a module beside the script, such as model.py, and import it from there; in a notebook a cell that "
    "begins with %%writefile model.py does so"
)
GUARD = 'put what runs under if __name__ == "__main__", or move the function into a module beside the script'


def with_paths(values: Mapping[str, Any] | None, where: str) -> Mapping[str, Any] | None:
    """A section, or overrides, with paths in place of objects, those among its metrics too. Raises JobError."""
    if not isinstance(values, Mapping):  # the job's own check names it
        return values
    return {key: _named(value, f"{where}{key}") for key, value in values.items()}


def _named(value: Any, where: str) -> Any:
    if where.endswith("metrics"):
        return with_paths(value, f"{where}.")
    return path_of(value, where) if callable(value) else value


def path_of(named: Callable[..., Any], where: str) -> str:
    """The path of a function or a class. Raises JobError for what no node could import."""
    name, module = getattr(named, "__qualname__", None), getattr(named, "__module__", None)
    if isinstance(named, functools.partial):
        raise JobError("a partial has no import path", where, "name its function, and give the arguments by args")
    if not isinstance(name, str) or not isinstance(module, str):
        what = f"an object of the class {type(named).__name__} does not know its import path"
        raise JobError(what, where, 'write the path: "module:name", of a name at the top level of a module')
    if "<" in name:
        what = "a lambda" if name.endswith("<lambda>") else f"{name.rpartition('.')[2]}, made within a function,"
        raise JobError(f"{what} cannot be imported by nodes", where, MEND)
    if module == "__main__":
        return _path_in_main(named, name, where)
    path = f"{_shortest(module, name, named)}:{name}"
    found = load_callable(path, where)
    if found is not named and not (isinstance(named, MethodType) and found == named):
        what = f"{path} as it is imported is another object than this one"
        mend = "give the one that the module has now: a notebook that reloads a module has to import from it again"
        raise JobError(what, where, mend)
    return path


def _shortest(module: str, name: str, named: object) -> str:
    """The outermost package that has the object under this name, as torch.optim has AdamW."""
    parts = module.split(".")
    outer = (".".join(parts[:end]) for end in range(1, len(parts)))
    known = ((each, getattr(sys.modules.get(each), "__dict__", {})) for each in outer)
    return next((each for each, there in known if there.get(name) is named), module)


def _path_in_main(named: Callable[..., Any], name: str, where: str) -> str:
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is None:
        raise JobError(f"nodes cannot import {name}, which no file holds", where, MEND)
    if not _is_guarded(Path(file)):
        raise JobError(f"nodes would run all of {Path(file).name} to import {name}", where, GUARD)
    path = f"{spec.name if spec is not None else Path(file).stem}:{name}"
    if not path.partition(":")[0].replace(".", "").isidentifier():
        raise JobError(f"{Path(file).name} cannot be imported under that name", where, MEND)
    with _as_a_node_starts():
        found = load_callable(path, where)
    imported = sys.modules[path.partition(":")[0]]
    _refuse_another_file(main, imported, where)
    _refuse_unlike(name, named, found, where)
    for each in sorted(_reached(named, vars(main)) & vars(main).keys() & vars(imported).keys()):
        _refuse_unlike(each, vars(main)[each], vars(imported)[each], where)
    return path


@contextmanager
def _as_a_node_starts() -> Iterator[None]:
    """A node has none of the script's arguments: what they set at the top level is something else there."""
    arguments, sys.argv = sys.argv, ["culm", "stage"]
    try:
        yield
    finally:
        sys.argv = arguments


def _is_guarded(file: Path) -> bool:
    """Whether the file has an ``if __name__ == "__main__"`` at its top level."""
    try:
        tests = [each.test for each in ast.parse(file.read_bytes()).body if isinstance(each, ast.If)]
    except (OSError, SyntaxError, ValueError):  # it was changed or removed since it began to run
        return False
    return any(ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__") for test in tests)


def _refuse_another_file(main: ModuleType, imported: ModuleType, where: str) -> None:
    files = [Path(getattr(module, "__file__", None) or "") for module in (main, imported)]
    if files[0].resolve() != files[1].resolve():
        what = f"nodes would import {files[1]} in place of {files[0]}"
        raise JobError(what, where, "give the script a name that no other module has")


def _refuse_unlike(name: str, here: object, there: object, where: str) -> None:
    """Raises JobError where what the script has under this name is not what nodes have when they import it."""
    if here is there or _comparable(here) == _comparable(there):
        return
    if is_plain_data(here) and is_plain_data(there):
        what = f"{name} is {here!r} in this script, and {there!r} where nodes import it"
        raise JobError(what, where, "pass it as an argument, such as model.args, in place of a global")
    what = f"{name} in this script is another one than where nodes import it"
    raise JobError(what, where, "define it once, at the top level, and start the script again after a change")


def _comparable(made: object) -> object:
    """Of data, functions and classes what makes two of them alike; of other objects their class."""
    if is_plain_data(made):
        return type(made), repr(made)
    if isinstance(made, FunctionType):
        defaults = [*(made.__defaults__ or ()), *(made.__kwdefaults__ or {}).values()]
        return made.__code__, list(map(_comparable, defaults))
    if isinstance(made, type):
        own = {key: getattr(each, "__func__", each) for key, each in vars(made).items()}
        own = {key: each for key, each in own.items() if key[:2] != "__" or isinstance(each, FunctionType)}
        inner = f"{made.__qualname__}."  # others are compared where the code looks them up
        return {
            k: _comparable(x) for k, x in own.items() if not isinstance(x, type) or x.__qualname__.startswith(inner)
        }
    return type(made).__qualname__


def _reached(made: object, globals_: Mapping[str, Any]) -> set[str]:
    """The names that its code looks up, and those that functions and classes of these names look up in turn."""
    found: set[str] = set()
    left = [made]
    while left:
        each = left.pop()
        names = {name for own in codes_of(each) for code in codes_in(own) for name in code.co_names}
        names |= {base.__name__ for base in each.__mro__[1:]} if isinstance(each, type) else set()
        left += [globals_[name] for name in names - found if name in globals_]
        found |= names
    return found
