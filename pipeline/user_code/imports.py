"""The user's code by its name, "module:callable". Whatever it raises becomes a JobError of one line."""

import importlib
import os
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from culm.pipeline.errors import JobError
from culm.pipeline.text import closest

# What user code may raise. SystemExit too: it would end the process without a word, and with exit code 0.
RAISED = (Exception, SystemExit)
# Where code lies that is not the job's: Python's own, and Culm's.
_OTHERS = (
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "scripts")),  # the second has the command's own
    f"{os.path.realpath(sysconfig.get_path('scripts'))}/",  # an environment may be reached by a link
    f"{Path(__file__).parents[2]}/",
)

_importing: ContextVar[str] = ContextVar("importing", default="")  # the module of the user's that is being imported


def refuse_while_importing(what: str) -> None:
    """Raises JobError where a module that a job names does this as it is imported: each node would do it again."""
    if name := _importing.get():
        mend = "put it under if __name__ == '__main__'"
        raise JobError(f"{what} is called while module {name!r} is imported", "at its top level", mend)


@contextmanager
def _marked(name: str) -> Iterator[None]:
    mark = _importing.set(name)
    try:
        yield
    finally:
        _importing.reset(mark)


def load_callable(path: str, where: str) -> Callable[..., Any]:
    """The object behind "module:callable". Raises JobError when there is none."""
    module, _, attribute = path.partition(":")
    found = _imported(module, where)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            known = [name for name in dir(found) if not name.startswith("_")]
            hint = closest(part, known) if len(known) < 10 else closest(part, known).partition("known here")[0]
            raise JobError(f"module {module!r} has no {attribute!r}", where, hint or "correct the name") from error
        except RAISED as error:
            raise JobError(f"{path!r} raised {described(error)}", where, "correct the code") from error
    if not callable(found):
        raise JobError(f"{path!r} cannot be called", where, "name a function or a class")
    return found  # type: ignore[no-any-return]


def _imported(name: str, where: str) -> Any:
    try:
        with _marked(name):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        mend = "install it, or run from the folder that holds it"
        if error.name is not None and (name + ".").startswith(error.name + "."):
            hint = _alike(error.name)
            mend = f"{hint} else {mend}" if hint else mend
        elif error.name is not None:  # what the module imports
            mend = f"install {error.name}, or run from the folder that holds it"
        raise JobError(f"module {name!r} cannot be imported ({error})", where, mend) from error
    except ImportError as error:
        mend = "correct its imports, or install what they need"
        if "relative import" in str(error):
            mend = "name it with its package (PACKAGE.MODULE:NAME), and run from the folder that holds the package"
        raise JobError(f"module {name!r} cannot be imported ({error})", where, mend) from error
    except RAISED as error:
        what = "tried to end the process" if isinstance(error, SystemExit) else f"raised {described(error)}"
        mend = "correct the code; what is to run as a program belongs under if __name__ == '__main__'"
        raise JobError(f"module {name!r} {what} when it was imported", where, mend) from error


def _alike(name: str) -> str:
    """``did you mean X?`` where the package has a module of a similar name, or nothing.

    Of modules outside of packages those beside the job, and in the current folder, come before those of Python.
    """
    package, _, last = name.rpartition(".")
    try:
        places: list[Iterable[str]] = [importlib.import_module(package).__path__] if package else [_own(), sys.path]
        for folders in places:
            hint = closest(last, [found.name for found in pkgutil.iter_modules(folders)])
            if hint.startswith("did you mean"):
                return hint
    except RAISED:  # a folder that cannot be read, a package without one
        return ""
    return ""


def _own() -> list[str]:
    """The folders of ``sys.path`` that are neither Python's own nor for packages that are installed."""
    stdlib = sysconfig.get_path("stdlib")
    return [each for each in sys.path if not each.startswith(stdlib) and "-packages" not in each]


def called(factory: Callable[..., Any], arguments: dict[str, Any], where: str) -> Any:
    """What the factory returns. Raises JobError for whatever it raises."""
    try:
        return factory(**arguments)
    except JobError:
        raise
    except RAISED as error:
        what = f"{getattr(factory, '__name__', type(factory).__name__)} raised {described(error)}"
        mend = "correct the code or its arguments"
        if isinstance(error, FileNotFoundError) and not Path(error.filename or "/").is_absolute():
            mend = f"this process looks from {Path.cwd()}: run from the folder that it is meant from, or name it whole"
        raise JobError(what, where, mend) from error


def note(error: BaseException, text: str) -> None:
    """Says beside the error where it came from; once, though the same error be raised again."""
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def place_of(error: BaseException) -> str:
    """The last line of the job's own code that an error came through: ``model.py, line 7``. Empty: through none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_own(f.filename)]
    return f"{frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno}" if frames else ""


def is_own(filename: str) -> bool:
    """Whether a file is the job's: of no package that is installed, nor of Culm or Python itself."""
    return not filename.startswith(("<", *_OTHERS)) and "site-packages" not in filename


def described(error: BaseException) -> str:
    """Type, first line and place of what user code raised: ``ValueError: no luck (model.py, line 7)``."""
    said = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    if isinstance(error, SyntaxError):  # which names its place itself
        return text
    place = place_of(error)
    return f"{text} ({place})" if place else text
