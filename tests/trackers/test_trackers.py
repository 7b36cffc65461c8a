"""Every tracker, written to by two processes one after the other, as by two coordinators, and read back."""

# ``make trackers`` installs them. Each test is skipped where its tracker is not.

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from culm.pipeline.money.codec import Entry, to_line, to_message
from culm.pipeline.money.kinds import Committed, Done, Evaluated, Event, Planned

ROOT = Path(__file__).parents[2]
ID = "digits-20260102-030405"
Numbers = dict[str, dict[int, list[float]]]  # by name and step: each value that is there


def line(number: int, event: Event) -> str:
    entry = Entry(sequence=number, time=1e9 + number, kind=event.kind, text="", step=0, generation=1, event=event)
    return to_line(to_message(entry))


def log(steps: int, done: bool = False) -> list[str]:
    """Of a run that evaluates after steps 2 and 4."""
    events: list[Event] = [Planned(generation=1, samples_per_step=8)]
    for step in range(steps):
        if step in (2, 4):
            events.append(Evaluated(step=step, loss=0.5 / step, metrics={"accuracy": step / 8}))
        events.append(Committed(step=step, loss=1.0 / (step + 1)))
    events += [Done(step=steps)] if done else []
    return [line(i + 1, event) for i, event in enumerate(events)]


def tell(kind: str, where: str, lines: list[str], folder: Path) -> None:
    words = [sys.executable, "-m", "culm.trackers", kind, where, "--id", ID, "--name", "digits"]
    words += ["--config", json.dumps({"job.steps": 6, "train.loss": "mine:loss"})]
    places = {"WANDB_DIR": folder, "TRACKIO_DIR": folder / "trackio", "WANDB_MODE": "offline", "PYTHONPATH": ROOT}
    environment = {**os.environ, **{name: str(value) for name, value in places.items()}}
    said = "".join(f"{each}\n" for each in lines)
    done = subprocess.run(
        words, input=said, env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def of_tensorboard(where: str, folder: Path) -> Numbers:
    from culm.trackers.tensorboard import events_in

    found: Numbers = {}
    for event in events_in(Path(where, ID)):
        for value in event.summary.value:
            found.setdefault(value.tag, {}).setdefault(event.step, []).append(value.simple_value)
    return found


def of_mlflow(where: str, folder: Path) -> Numbers:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=where)
    experiment = client.get_experiment_by_name("digits")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["train.loss"] == "mine:loss"
    assert run.info.status == "FINISHED"
    found: Numbers = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            found.setdefault(name, {}).setdefault(metric.step, []).append(metric.value)
    return found


def of_trackio(where: str, folder: Path) -> Numbers:
    code = "import json, sys; from trackio.sqlite_storage import SQLiteStorage as S; "
    code += "print(json.dumps(S.get_logs(*sys.argv[1:])))"
    environment = {**os.environ, "TRACKIO_DIR": str(folder / "trackio")}
    words = [sys.executable, "-c", code, where, ID]
    rows = json.loads(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout)
    return by_row(rows, "step")


def of_wandb(where: str, folder: Path) -> Numbers:
    from wandb.proto import wandb_internal_pb2

    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                items = record.history.item
                rows.append({(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in items})
    return by_row(rows, "trained_steps")


def records(data: bytes) -> Iterator[bytes]:
    """Of a log in LevelDB's format, behind W&B's header of 7 bytes."""
    block, header, at, whole = 1 << 15, 7, 7, b""
    while at + header <= len(data):
        if block - at % block < header:  # no header fits into the rest of the block
            at += block - at % block
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + header : at + header + size]
        at += header + size
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def by_row(rows: list[dict[str, Any]], step: str) -> Numbers:
    found: Numbers = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith(("train/", "evaluate/")):
                found.setdefault(name, {}).setdefault(int(row[step]), []).append(value)
    return found


TRACKERS: dict[str, tuple[str, Callable[[str, Path], Numbers]]] = {
    "tensorboard": ("{folder}/board", of_tensorboard),
    "mlflow": ("sqlite:///{folder}/mlflow.db", of_mlflow),
    "trackio": ("digits", of_trackio),
    "wandb": ("digits", of_wandb),
}


@pytest.mark.parametrize("kind", TRACKERS)
def test_what_two_coordinators_tell_is_there_once(kind: str, tmp_path: Path) -> None:
    pytest.importorskip(kind)
    place, read = TRACKERS[kind]
    where = place.format(folder=tmp_path)
    tell(kind, where, log(3), tmp_path)
    tell(kind, where, log(6, done=True), tmp_path)  # from the beginning, as a successor does
    found = read(where, tmp_path)
    assert {name: sorted(found[name]) for name in ("train/loss", "evaluate/loss", "evaluate/accuracy")} == {
        "train/loss": [1, 2, 3, 4, 5, 6],
        "evaluate/loss": [2, 4],
        "evaluate/accuracy": [2, 4],
    }
    assert all(len(values) == 1 for of_name in found.values() for values in of_name.values())
    assert found["train/loss"][4] == [0.25]
    assert found["evaluate/accuracy"][4] == [0.5]
    assert found["train/samples_per_second"][6] == [8.0]
