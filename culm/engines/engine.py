"""One interface for every kind of cluster that a job can be started on.

An engine starts a coordinator and stage servers, and leaves to the cluster what the cluster is there for: where they
run, that they run again after a machine was lost, and their logs. It keeps nothing but a record in the cluster's folder
(``local.clusters``), which is all that the next command goes by.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from culm.local.clusters import LOCAL, Record
from culm.pipeline.errors import JobError
from culm.pipeline.text import closest

ADD = "add.json"  # a file of a local cluster's folder: the nodes that its keeper is to start
Tell = Callable[[str], None]  # says in a line what is being waited for

# Each in a module of its own, which is imported when it is asked for: Ray brings a lot.
ENGINES = {
    LOCAL: "culm.engines.local:Local",
    "slurm": "culm.engines.slurm:Slurm",
    "ray": "culm.engines.ray_cluster:RayCluster",
    "kubernetes": "culm.engines.kubernetes:Kubernetes",
    "skypilot": "culm.engines.skypilot:SkyPilot",
}


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What ``culm up`` was asked for. The cluster's folder has the job itself, as ``job.toml``.

    ``job_folder``: where the user's modules lie, beside the current folder. ``options``: what ``--with`` said.
    """

    name: str
    job: str
    job_folder: Path
    nodes: int
    address: str = ""
    resume: str = ""
    allow: str = ""
    new_run: bool = False
    ui: bool = True
    options: Mapping[str, str]


class Engine(Protocol):
    """Raises JobError where the cluster refuses, in one line with the mend."""

    options: Mapping[str, str]  # what ``--with KEY=VALUE`` may say, and what each key means
    more: str  # how its own commands start more stage servers, or one again that has gone for good

    def up(self, folder: Path, wish: Wish, tell: Tell) -> Record:
        """Starts everything; returns once the coordinator listens. The record is written before anything runs."""
        ...

    def plan(self, folder: Path, wish: Wish) -> str:
        """What ``up`` would hand to the cluster, as text. Starts nothing. ``folder``: for drafts, and with the job."""
        ...

    def refusals(self, folder: Path, wish: Wish) -> list[JobError]:
        """Why ``up`` would fail, as far as the cluster's client here tells. Starts nothing. ``folder``: as above."""
        ...

    def reach(self, folder: Path, record: Record) -> str:
        """The coordinator's address for this process, as long as it runs."""
        ...

    def parts(self, folder: Path, record: Record) -> Mapping[str, str]:
        """What it has of this cluster, and the state of each in the engine's own words."""
        ...

    def logs(self, folder: Path, record: Record) -> Mapping[str, Callable[[], Iterator[str | None]]]:
        """By part, what gives the lines of its log so far; None for a line that can no longer be had."""
        ...

    def down(self, folder: Path, record: Record) -> list[str]:
        """Ends everything, and returns what ran. Harmless where nothing does."""
        ...


def find(name: str) -> Engine:
    """The engine of that name. Raises JobError for an unknown one."""
    if name not in ENGINES:
        raise JobError(f"{name!r} is not an engine", "--on", closest(name, ENGINES))
    module, _, made = ENGINES[name].partition(":")
    found: Engine = getattr(import_module(module), made)()
    return found


def refuse_new_run(wish: Wish) -> None:
    """Raises JobError for --new-run, on an engine that starts its coordinator again by the very words of before.

    With the flag among them a run that lost its coordinator would begin anew.
    """
    if wish.new_run:
        what = "this engine cannot begin anew over checkpoints, or go back to an older one of the same url"
        mend = "leave it out, and let the run write to another url with --set checkpoint.url=URL"
        raise JobError(what, "--new-run", mend)


def options_of(words: list[str], engine: Engine, name: str) -> dict[str, str]:
    """``KEY=VALUE`` words as a mapping. Raises JobError for a key that the engine does not know."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise JobError(f"{word!r} says no value", "--with", "write KEY=VALUE")
        if key not in engine.options:
            mend = closest(key, engine.options) if engine.options else "leave it out"
            raise JobError(f"the engine {name} has no option {key!r}", "--with", mend)
        found[key] = value
    return found
