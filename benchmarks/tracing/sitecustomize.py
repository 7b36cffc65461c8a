"""Writes down which files of the repository are entered, by process, thread and time: for ``benchmarks.paths``.

Python imports a module of this name when it starts, wherever its folder is on the path. Without CULM_TRACE_FOLDER it
does nothing.
"""

import os
import sys
import threading
import time
from types import FrameType

FOLDER, ROOT = os.environ.get("CULM_TRACE_FOLDER", ""), os.environ.get("CULM_TRACE_ROOT", "")
KEY = tuple(map(int, os.environ.get("CULM_TRACE_KEY", "").split()))  # step, pipeline, kind, stage, index of the tensor
NODE = os.environ.get("CULM_TRACE_NODE", "")  # the node that is lost
ENDS = ("first", "last")  # whether a stage is that of its pipeline; trees before bf8fcd24 say _first and _last
MARKED = {"forward"}  # of these it also matters when they return, and of what they are
_known: dict[str, str] = {}  # what code says of its file -> the file in the repository, or nothing
_files: dict[int, int] = {}  # process -> its open file


def _place(said: str) -> str:
    if said not in _known:
        real = os.path.realpath(said) if not said.startswith("<") else ""
        inside = real.startswith(ROOT + os.sep) and f"{os.sep}." not in real[len(ROOT) :]
        _known[said] = os.path.relpath(real, ROOT) if inside else ""
    return _known[said]


def _named(value: object) -> str:
    """``t`` for the tensor's key, ``n`` for the lost node's name or a plan; nothing for all else."""
    if isinstance(value, tuple) and type(value).__name__ == "Key":
        return "t" if value[1:6] == KEY else ""
    return "n" if (isinstance(value, str) and value == NODE) or type(value).__name__ == "Plan" else ""


def _given(frame: FrameType) -> str:
    """What of the followed things a function is given: itself, one deep in a list, or as a field named key or node."""
    code = frame.f_code
    found: set[str] = set()
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value = frame.f_locals.get(name)
        if name == "self":
            continue
        several = value if isinstance(value, list | tuple) and len(value) < 100 else ()
        fields = (getattr(value, field, None) for field in ("key", "node")) if hasattr(value, "__slots__") else ()
        found.update(map(_named, (value, *several, *fields)))
    return "".join(sorted(found))


def _write(frame: FrameType, event: str, argument: object) -> None:
    if event not in ("call", "return"):
        return
    code = frame.f_code
    if event == "return" and code.co_name not in MARKED:
        return
    place = _place(code.co_filename)
    if not place:
        return
    marks = ""
    if code.co_name in MARKED and "microbatch" in frame.f_locals:
        stage = frame.f_locals["self"]
        ends = [getattr(stage, end, None) or getattr(stage, f"_{end}", False) for end in ENDS]
        marks = f"{stage._step} {frame.f_locals['microbatch']} {int(ends[0])} {int(ends[1])}"
    process = os.getpid()
    if process not in _files:  # also after a fork
        _files[process] = os.open(os.path.join(FOLDER, str(process)), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    given = _given(frame) if event == "call" else ""
    words = (f"{time.monotonic():.6f}", event, threading.current_thread().name, place, code.co_name, marks, given)
    os.write(_files[process], ("\t".join(words) + "\n").encode())


if FOLDER:
    threading.setprofile(_write)
    sys.setprofile(_write)
