"""Whether a module's file was changed after this process had imported it, as in a notebook whose cells write files."""

# This process would go on with the code that it has, and try out, compare and load weights by that. The nodes import
# the file as it is now. So a process that starts runs refuses to go on with such a module until it is imported anew.
#
# Python does not keep what it has imported. So a module that is seen for the first time is compared function by
# function, where Python has imported it in its usual way; from then on the whole file is.

import hashlib
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from culm.pipeline.errors import JobError

NOT_THE_USERS = {"torch", "culm", "__main__", *sys.stdlib_module_names}  # a script's own file is looked at by its name


class Imported:
    """The files of modules, as they were when they were seen first."""

    def __init__(self) -> None:
        # By name: the spec, which is another one after a reload, and a hash of the file.
        self._seen: dict[str, tuple[ModuleSpec | None, bytes]] = {}

    def refuse_edited(self, paths: Iterable[str]) -> None:
        """``paths``: "module:name" of code that a job names. Looks at these modules, and at what they import.

        Raises JobError.
        """
        for name, module in _reached(paths).items():
            file = str(module.__file__)
            try:
                source = Path(file).read_bytes()
            except OSError:  # in an archive
                continue
            now = module.__spec__, hashlib.sha256(source).digest()
            spec, digest = self._seen.get(name, (None, b""))
            is_new = name not in self._seen or spec is not now[0]
            if not (_is_of(module, source) if is_new else digest == now[1]):
                mend = f"start the process or the notebook's kernel again, or importlib.reload({name}) and import anew"
                raise JobError(f"its file {Path(file).name} was changed after it was imported", f"module {name}", mend)
            self._seen[name] = now


def _reached(paths: Iterable[str]) -> dict[str, ModuleType]:
    """The user's modules that have a file, by name: those named, of their packages, and those that these import."""
    loaded = {name: module for name, module in list(sys.modules.items()) if _is_the_users(name, module)}
    roots = {path.partition(":")[0].partition(".")[0] for path in paths}
    left = [name for name in loaded if name.partition(".")[0] in roots]
    found: dict[str, ModuleType] = {}
    while left:
        if (name := left.pop()) in found or name not in loaded:
            continue
        found[name] = loaded[name]
        for value in list(vars(found[name]).values()):
            made = value if isinstance(value, FunctionType | type) else type(value)
            left.append(value.__name__ if isinstance(value, ModuleType) else made.__module__)
    return found


def _is_the_users(name: str, module: ModuleType) -> bool:
    file = getattr(module, "__file__", None) or ""
    others = name.partition(".")[0] in NOT_THE_USERS or "site-packages" in file
    return file.endswith(".py") and not others


def _is_of(module: ModuleType, source: bytes) -> bool:
    """Whether the functions that it has are those of the source, as far as that can be said."""
    loader, file = module.__loader__, str(module.__file__)
    if type(loader) is not SourceFileLoader:  # another one may change the code that it loads
        return True
    try:
        whole = loader.source_to_code(source, file)
    except SyntaxError:
        return False
    known = set(codes_in(whole))
    own = (each for made in list(vars(module).values()) for each in codes_of(made))
    return all(code in known for code in own if code.co_filename == file)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code itself, and that of what is made within."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_in(each)


def codes_of(made: object) -> Iterator[CodeType]:
    """Of a function, or of a class's own functions."""
    if isinstance(made, FunctionType):
        yield made.__code__
    elif isinstance(made, type):
        for each in list(vars(made).values()):
            inner = getattr(each, "__func__", each)
            if not isinstance(inner, type) or inner.__qualname__.startswith(f"{made.__qualname__}."):
                yield from codes_of(inner)
