"""Whether a module's file was changed after this process had imported it, as in a notebook whose cells write files."""

# This process would go on with the code that it has, and try out, compare and load weights by that. The nodes import
# the file as it is now. So a process that starts runs refuses to go on with such a module until it is imported anew.

import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path

from culm.pipeline.errors import JobError

State = tuple[int, int]  # when the file was changed, in nanoseconds, and how many bytes it has


class Imported:
    """The files of modules, as they were when they were seen first."""

    def __init__(self) -> None:
        # A module that is reloaded has another spec.
        self._seen: dict[str, tuple[ModuleSpec | None, State]] = {}

    def refuse_edited(self, paths: Iterable[str]) -> None:
        """``paths``: "module:name" of code that a job names, whose packages are looked at. Raises JobError."""
        roots = {path.partition(":")[0].partition(".")[0] for path in paths} - {"torch", "culm"}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name.partition(".")[0] not in roots or not file or not file.endswith(".py"):
                continue
            try:
                found = Path(file).stat()
            except OSError:  # of an archive, or gone
                continue
            now = module.__spec__, (found.st_mtime_ns, found.st_size)
            spec, state = self._seen.setdefault(name, now)
            if spec is not now[0]:
                self._seen[name] = now
            elif state != now[1]:
                mend = f"start the process or the notebook's kernel again, or importlib.reload({name}) and import anew"
                raise JobError(f"its file {Path(file).name} was changed after it was imported", f"module {name}", mend)
