"""How many files a change of the data plane, or of a lost node's replacement, leads through.

``python -m benchmarks.paths [--root FOLDER]`` trains on three nodes, kills one, and prints every file of the repository
that was entered on the way

- of a tensor: from the end of stage 0's forward to the beginning of stage 1's forward of the same microbatch;
- of a lost node: from the first evidence at the coordinator to its heir's first instruction.

A file counts as *handed* where one of its functions was given the thing itself: the tensor's key, or the lost node's
name or a plan. The other files were entered meanwhile, by the same processes, for other reasons too. ``--root`` names
another tree, such as an older commit's. Threads that take no part are left out: ``APART`` names them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEP = 5  # whose tensor is followed
LOST = "n1"
KILL = f"{LOST}@8:1B0"
FOLLOWED = f"{STEP} 0 1 0 0"  # the tensor's key: step, pipeline, kind, stage, microbatch
JOB = ["examples/digits_mlp.toml", "--nodes", "3", "--set", "pipeline.stages=3", "--set", "job.steps=14"]
EVIDENCE = {"peer_lost", "stream_broken"}  # of the coordinator's decisions
RESUMED = "_resumed"  # the coordinator hears of the heir's first instruction
APART = ("beat", "heartbeat", "metrics", "watch", "notices", "checkpoint", "health")  # parts of threads' names


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Entry:
    """A function was called, or one that is marked has returned."""

    time: float
    process: str
    event: str
    thread: str
    place: str  # the file, from the tree's root
    function: str
    marks: tuple[int, ...]  # of a stage's forward: step, microbatch, is it the first stage, is it the last
    given: str  # t: the tensor's key is among the arguments; n: the lost node's name, or a plan


def entries(folder: Path) -> list[Entry]:
    """All that the processes wrote, in order of time."""

    def read() -> Iterator[Entry]:
        for path in folder.iterdir():
            for line in path.read_text().splitlines():
                time, event, thread, place, function, marks, given = line.split("\t")
                yield Entry(
                    time=float(time),
                    process=path.name,
                    event=event,
                    thread=thread,
                    place=place,
                    function=function,
                    marks=tuple(map(int, marks.split())),
                    given=given,
                )

    return sorted(read())


def of_a_tensor(found: Sequence[Entry]) -> list[Entry]:
    """From the end of a forward of the first stage to the beginning of the next stage's of the same microbatch."""
    made = next(e for e in found if e.event == "return" and e.marks == (STEP, 0, 1, 0))
    taken = next(e for e in found if e.event == "call" and e.marks == (STEP, 0, 0, 0) and e.time >= made.time)
    return [e for e in between(found, made, taken) if e.process in (made.process, taken.process)]


def of_a_lost_node(found: Sequence[Entry]) -> list[Entry]:
    """From the first evidence at the coordinator to the heir's first instruction, as the coordinator hears of it."""
    evidence = next(e for e in found if e.function in EVIDENCE and e.place.startswith("coordinator/"))
    resumed = next(e for e in found if e.function == RESUMED and e.place.startswith("coordinator/"))
    return between(found, evidence, resumed)


def between(found: Sequence[Entry], first: Entry, last: Entry) -> list[Entry]:
    return [
        e
        for e in found
        if first.time <= e.time <= last.time and not any(word in e.thread.lower() for word in APART)
        if not e.place.startswith(("tests/", "benchmarks/", "examples/", "protos/"))
    ]


def told(name: str, path: Sequence[Entry], followed: str) -> str:
    """Each file where it is handed the thing first, or entered first."""
    handed: dict[str, Entry] = {}
    entered: dict[str, Entry] = {}
    for entry in path:
        entered.setdefault(entry.place, entry)
        if followed in entry.given:
            handed.setdefault(entry.place, entry)
    lines = [f"{name}: {len(handed)} files handed, {len(entered)} entered"]
    lines.extend(f"  {e.place}: {e.function}  ({e.thread} of process {e.process})" for e in handed.values())
    others = [e for e in entered.values() if e.place not in handed]
    lines.extend(f"  entered: {e.place}: {e.function}  ({e.thread} of process {e.process})" for e in others)
    return "\n".join(lines)


def traced(root: Path) -> list[Entry]:
    """What a run of the tree's own ``culm run`` enters."""
    with tempfile.TemporaryDirectory() as name:
        hook = str(ROOT / "benchmarks" / "tracing")
        ours = {
            "PYTHONPATH": os.pathsep.join((hook, str(root))),
            "CULM_TRACE_FOLDER": name,
            "CULM_TRACE_ROOT": str(root),
            "CULM_TRACE_KEY": FOLLOWED,
            "CULM_TRACE_NODE": LOST,
        }
        words = [sys.executable, "-m", "culm", "run", *JOB, "--kill", KILL, "--set", "job.threads=1"]
        subprocess.run(words, cwd=root, env={**os.environ, **ours}, check=True, stdout=subprocess.DEVNULL)
        return entries(Path(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=lambda text: Path(text).resolve(), default=ROOT, help="the tree to trace")
    found = traced(parser.parse_args().root)
    print(told("a tensor, from one stage's forward to the next one's", of_a_tensor(found), "t"))
    print(told("a lost node, from its evidence to its heir's first instruction", of_a_lost_node(found), "n"))


if __name__ == "__main__":
    main()
