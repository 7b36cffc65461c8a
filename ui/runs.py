"""Ended runs: recorded logs in a folder, each folded once and compared. Knows nothing about Streamlit."""

from dataclasses import dataclass, field
from pathlib import Path

from culm.pipeline.errors import JobError
from culm.pipeline.money.codec import Reader
from culm.ui.curves import Columns, View, binned
from culm.ui.look import Look
from culm.ui.recorded import Replay, read_log
from culm.ui.standing import has_price, standing

SUFFIXES = (".jsonl", ".jsonl.gz")
MOST_BYTES = 256 << 20  # of a file: a log of more is left out, and said so
POINTS = 300  # of a curve in the comparison


@dataclass(frozen=True, kw_only=True)
class Run:
    """``problem`` says why it cannot be shown; empty: it can."""

    name: str
    look: Look = field(default_factory=Look)
    problem: str = ""


@dataclass(eq=False)
class Runs:
    """The runs of a folder. A file that has changed is read anew."""

    folder: Path
    _known: dict[str, tuple[tuple[int, int], Run]] = field(default_factory=dict)

    def path_of(self, name: str) -> Path | None:
        """The file of a run; None where there is none of this name in the folder."""
        return self._files().get(name)

    def _files(self) -> dict[str, Path]:
        if not self.folder.is_dir():
            return {}
        found = (path for path in sorted(self.folder.iterdir()) if _is_log(path))
        return {path.name.removesuffix(".gz").removesuffix(".jsonl"): path for path in found}

    def all(self) -> list[Run]:
        """The newest first; those that cannot be read last."""
        files = self._files()
        for name in set(self._known) - set(files):
            del self._known[name]
        for name, path in files.items():
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if name not in self._known or self._known[name][0] != stamp:
                self._known[name] = (stamp, read_run(name, path, stat.st_size))
        runs = [run for _, run in self._known.values()]
        return sorted(runs, key=lambda run: (bool(run.problem), -run.look.history.begun, run.name))


def _is_log(path: Path) -> bool:
    return path.is_file() and path.name.endswith(SUFFIXES) and not path.name.startswith(".")


def read_run(name: str, path: Path, size: int) -> Run:
    if size > MOST_BYTES:
        return Run(name=name, problem=f"larger than {MOST_BYTES >> 20} MiB")
    replay, reader = Replay(name), Reader("what the pages show")
    try:
        events = read_log(path)
    except JobError as error:
        return Run(name=name, problem=str(error))
    if not events:
        return Run(name=name, problem="the file holds no event")
    for event in events:
        reader.read(event, replay.take)
    return Run(name=name, look=replay.look(events[-1].time, ended=True))


def row(run: Run) -> dict[str, object]:
    """What a table of runs tells. Columns without a value are None in every row, or hold none."""
    look = run.look
    history, cost = look.history, look.cost
    ended = history.done or history.failed
    best = min((v["loss"] for v in history.evaluations.values()), default=None)
    lasted = (ended.time if ended else history.last) - history.begun if history.begun else None
    return {
        "run": run.name,
        "how": run.problem or standing(look).word,
        "begun": history.begun or None,
        "seconds": lasted,
        "steps": history.steps_done(),
        "last loss": history.losses[-1] if history.losses else None,
        "best evaluation": best,
        "dollars": cost.dollars if has_price(cost) else None,
        "samples/s": cost.samples / cost.seconds if cost.seconds else None,
        "goodput": cost.useful_seconds / cost.seconds if cost.seconds else None,
        "incidents": len(history.incidents),
        "most nodes": max((count for _, count in history.population), default=0),
    }


def overlay(runs: list[Run], axis: str, what: str) -> Columns:
    """Curves of several runs, as one table: the loss, or what was evaluated."""
    found: Columns = {"x": [], "value": [], "run": []}
    for run in runs:
        history = run.look.history
        view = View(history, axis, zero=history.begun if axis == "time" else None)
        if what == "loss":
            curve = binned("loss", view.xs(), history.losses, POINTS)
            points = list(zip(curve.x, curve.mean, strict=True))
        else:
            told = sorted((s, v["loss"], history.evaluated_at[s]) for s, v in history.evaluations.items())
            points = [(view.at_step(step, at), value) for step, value, at in told]
        for x, y in points:
            found["x"].append(x)
            found["value"].append(y)
            found["run"].append(run.name)
    return found
