"""What an era begins from is one checkpoint, named once; a storage that is away for a while costs none (rule 14)."""

import hashlib
import os
import queue
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from culm.coordinator import reports
from culm.coordinator.commands import Examine, Publish, Record
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.edges.archive import look
from culm.coordinator.edges.persistence import from_document, to_document
from culm.coordinator.edges.translation import report_of
from culm.coordinator.state import Phase, Settings, State
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.checkpoints.layer_file import read_layer, write_layer
from culm.pipeline.checkpoints.manifest import (
    File,
    Manifest,
    complete,
    find_checkpoints,
    folder_of,
    read_manifest,
    write_manifest,
)
from culm.pipeline.job import load_job
from culm.pipeline.origin import Origin
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.stage_server.restorer import Restorer, _Overdue
from culm.stage_server.streams import attend_messages
from culm.terminal.outcome import RunFailed

EXAMPLES = Path(__file__).parents[2] / "examples"
COSTS = (1.0, 1.0)
TEN, TWENTY = Origin(10, "memory://c/step-00000010", "a" * 64), Origin(20, "memory://c/step-00000020", "b" * 64)


# ---- what the coordinator decides -----------------------------------------------------------------------------------


def arrival(node: str, incarnation: int) -> tuple[reports.Report, reports.Report]:
    return reports.Joined(node=node, incarnation=incarnation, address=f"{node}:1"), reports.Available(
        node=node, incarnation=incarnation, layer_costs=COSTS
    )


def after(state: State, *events: reports.Report) -> tuple[State, list[object]]:
    done: list[object] = []
    for report in events:
        state, commands = advance(state, report, 0.0)
        validate(state)
        done.extend(commands)
    return state, done


def rolled_back() -> State:
    """Both copies of a stage are gone, checkpoint 10 is whole, and too few nodes are left to go on."""
    settings = Settings(stages=2, microbatches=1, steps=30, checkpoint_url="memory://c")
    state, _ = after(begin(settings), *arrival("n0", 1), *arrival("n1", 2))
    assert state.plan is not None
    state = replace(state, committed=22, plan=replace(state.plan, step=22), checkpoints=(TEN,))
    state, _ = after(state, reports.Left("n1", 2), reports.Left("n0", 1))
    assert (state.phase, state.committed, state.origin) == (Phase.WAITING, 10, TEN)
    return state


def test_a_manifest_that_completes_while_an_era_waits_for_nodes_changes_no_origin() -> None:
    state, _ = after(rolled_back(), reports.Checkpointed(TWENTY))
    state, commands = after(state, *arrival("n2", 3), *arrival("n3", 4))
    (plan,) = [command.plan for command in commands if isinstance(command, Publish)]
    assert (plan.step, plan.origin) == (10, TEN)
    assert state.checkpoints == (TEN, TWENTY)


def test_a_leader_that_takes_over_in_the_middle_of_a_rollback_goes_on_from_its_origin() -> None:
    state, _ = after(rolled_back(), reports.Checkpointed(TWENTY))
    state = from_document(to_document(state), state.settings, state.term + 1, now=-60.0)
    state, _ = after(state, *arrival("n2", 3), *arrival("n3", 4), reports.Tick())
    assert state.plan is not None
    assert (state.plan.step, state.plan.origin) == (10, TEN)


def test_retention_leaves_what_nodes_still_read() -> None:
    state = rolled_back()
    state = replace(state, settings=replace(state.settings, checkpoints_kept=1))
    state, commands = after(state, reports.Checkpointed(TWENTY))
    (retain,) = [c for c in commands if type(c).__name__ == "Retain"]
    assert retain.kept == {10, 20}  # type: ignore[attr-defined]
    assert state.checkpoints == (TEN, TWENTY)


def test_a_storage_that_does_not_answer_is_no_proof() -> None:
    state, _ = after(rolled_back(), *arrival("n2", 3), *arrival("n3", 4))
    for _ in range(3):
        for node, incarnation in (("n2", 3), ("n3", 4)):
            state, commands = after(
                state, reports.Unread(node=node, incarnation=incarnation, era=state.era, origin=TEN, why="it times out")
            )
    assert commands == [], "the log hears of each node once"
    assert (state.phase, state.checkpoints, state.origin) == (Phase.RUNNING, (TEN,), TEN)
    assert "n3 cannot read the checkpoint memory://c/step-00000010: it times out" in state.detail


def test_a_share_that_takes_long_is_said_to_be_read_yet() -> None:
    """Whatever took more than ten seconds was said to be unreadable; and a failure after that was not told."""
    state, _ = after(rolled_back(), *arrival("n2", 3), *arrival("n3", 4))
    failed = reports.Unread(node="n2", incarnation=3, era=state.era, origin=TEN, why="it times out")
    slow = replace(failed, why="it has taken 10 s so far", being_read=True)
    state, (told,) = after(state, slow)
    assert isinstance(told, Record)
    assert told.text == state.detail
    assert state.detail.startswith(f"n2 is still reading the checkpoint {TEN.folder}: it has taken 10 s so far; ")
    state, commands = after(state, slow, reports.Examined(TEN, reports.Sight.THERE))
    assert (commands, "cannot" in state.detail) == ([], False)
    state, (told,) = after(state, failed)
    assert isinstance(told, Record)
    assert "n2 cannot read" in told.text
    state, commands = after(state, slow, failed, slow)
    assert commands == [], "the log hears of each once"
    state, _ = after(state, reports.Examined(TEN, reports.Sight.THERE))
    assert "n2 cannot (it times out)" in state.detail


@pytest.mark.parametrize("sight", reports.Sight)
def test_only_what_the_coordinator_itself_finds_wrong_ends_the_era(sight: reports.Sight) -> None:
    state, _ = after(rolled_back(), *arrival("n2", 3), *arrival("n3", 4))
    era = state.era
    state, commands = after(
        state, reports.Unread(node="n2", incarnation=3, era=era, origin=TEN, why="no manifest", absent=True)
    )
    assert [type(command).__name__ for command in commands] == ["Record", "Examine"]
    state, _ = after(state, reports.Examined(TEN, sight, "seen so"))
    assert (state.era > era) == (sight is reports.Sight.WRONG)
    assert (state.origin == Origin()) == (sight is reports.Sight.WRONG)
    assert state.plan is not None
    assert state.plan.origin == state.origin


def test_other_bytes_that_one_node_reads_are_no_proof() -> None:
    """Its disk may be bad. The coordinator reads the layer's files itself."""
    state, _ = after(rolled_back(), *arrival("n2", 3), *arrival("n3", 4))
    damaged = reports.Unread(node="n2", incarnation=3, era=state.era, origin=TEN, why="another sha256", damaged_layer=1)
    again, commands = after(state, damaged)
    assert [command for command in commands if isinstance(command, Examine)] == [Examine(state.era, TEN, 1)]
    again, _ = after(again, reports.Examined(TEN, reports.Sight.THERE))
    assert (again.era, again.checkpoints) == (state.era, (TEN,))
    assert "n2 cannot (another sha256)" in again.detail


def test_a_report_about_an_origin_before_is_no_report_about_this_one() -> None:
    state, _ = after(rolled_back(), *arrival("n2", 3), *arrival("n3", 4))
    again, _ = after(state, reports.CheckpointBad("n2", replace(TEN, sha256="c" * 64), "late"))
    assert (again.era, again.checkpoints) == (state.era, (TEN,))


def test_a_resumed_run_never_starts_from_step_0() -> None:
    state = replace(rolled_back(), resumed=True)
    state, _ = after(state, *arrival("n2", 3), *arrival("n3", 4), reports.CheckpointBad("n2", TEN, "torn"))
    assert state.phase is Phase.FAILED
    assert "resumes from another one" in state.detail


# ---- what is read, from real files ----------------------------------------------------------------------------------


class Hears:
    """A restorer's listener."""

    def __init__(self) -> None:
        self.told: queue.Queue[tuple[str, object]] = queue.Queue()
        self.wants = True

    def fetched(self, era: int, layer: int, version: int, state: Value) -> None:
        self.told.put(("fetched", (layer, version)))

    def lacks(self, era: int, layer: int) -> bool:
        return self.wants

    def unread(self, era: int, origin: Origin, why: str, absent: bool, damaged_layer: int | None) -> None:
        kind = "absent" if absent else "unread" if damaged_layer is None else f"layer {damaged_layer} is damaged"
        self.told.put((kind, why))

    def being_read(self, era: int, origin: Origin, seconds: float) -> None:
        self.told.put(("being read", seconds))

    def checkpoint_bad(self, era: int, origin: Origin, why: str) -> None:
        self.told.put(("bad", why))


def written(url: str, step: int, number: float = 1.0) -> Origin:
    folder = folder_of(url, step)
    files = {0: write_layer(folder, 0, Value((("parameter.weight", torch.full((3,), number)),)))}
    return write_manifest(folder, Manifest(job="job", step=step, fingerprint="code", loss=number, files=files))


@pytest.fixture
def hears() -> Hears:
    return Hears()


def test_a_mount_that_is_gone_for_a_while_is_waited_for(tmp_path: Path, hears: Hears) -> None:
    origin = written(f"{tmp_path}/mount", 10)
    (tmp_path / "mount").rename(tmp_path / "elsewhere")
    below = tmp_path / "mount" / "step-00000030"  # where a node writes its share of a newer step meanwhile
    below.mkdir(parents=True)
    (below / "layer-00000.safetensors").write_bytes(b"a share")
    (tmp_path / "mount" / "NOT_MOUNTED").touch()
    Restorer(hears).read(origin, [0], 1)
    kind, why = hears.told.get()
    assert (kind, look(origin)[0]) == ("absent", reports.Sight.AWAY), why
    shutil.rmtree(tmp_path / "mount")
    (tmp_path / "elsewhere").rename(tmp_path / "mount")
    while (told := hears.told.get())[0] != "fetched":
        assert told[0] == "absent"
    assert told == ("fetched", (0, 10))
    assert look(origin)[0] is reports.Sight.THERE


def test_the_folder_that_was_written_again_is_another_checkpoint(tmp_path: Path, hears: Hears) -> None:
    origin = written(str(tmp_path), 10)
    assert written(str(tmp_path), 10) == origin, "the same again changes nothing"
    shutil.rmtree(origin.folder)
    again = written(str(tmp_path), 10, number=2.0)
    assert again != origin
    restorer = Restorer(hears)
    restorer.read(origin, [0], 1)
    assert hears.told.get()[0] == "absent"
    assert look(origin)[0] is reports.Sight.WRONG
    restorer.close()


def test_a_file_that_is_torn_under_its_manifest_is_looked_at_by_the_coordinator(tmp_path: Path, hears: Hears) -> None:
    origin = written(str(tmp_path), 10)
    path = Path(origin.folder) / "layer-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    restorer = Restorer(hears)
    restorer.read(origin, [0], 1)
    assert hears.told.get()[0] == "unread", "it is read once more"
    kind, why = hears.told.get()
    assert kind == "layer 0 is damaged"
    assert "layer-00000.safetensors has" in str(why)
    restorer.close()
    assert look(origin) == (reports.Sight.THERE, ""), "the manifest is whole"
    assert look(origin, 0) == (reports.Sight.WRONG, why)


def test_a_file_that_has_its_hash_and_is_no_layer_is_a_proof(tmp_path: Path, hears: Hears) -> None:
    origin = written(str(tmp_path), 10)
    manifest = read_manifest(origin.folder)
    data = b"no tensors"
    file = File("layer-00000.safetensors", len(data), hashlib.sha256(data).hexdigest())
    (Path(origin.folder) / file.name).write_bytes(data)
    origin = write_manifest(origin.folder, replace(manifest, files={0: (file, manifest.files[0][1])}))
    Restorer(hears).read(origin, [0], 1)
    assert hears.told.get()[0] == "unread", "it is read once more"
    kind, why = hears.told.get()
    assert (kind, look(origin, 0)[0]) == ("bad", reports.Sight.THERE)
    assert "do not hold a layer's state" in str(why)


def test_the_loss_alone_makes_no_other_manifest(tmp_path: Path) -> None:
    """A second leader completes the checkpoint again, after another commit: an era may have begun from the first."""
    origin = written(str(tmp_path), 10)
    files = Manifest(
        job="job", step=10, fingerprint="code", loss=7.0, files={0: write_layer(origin.folder, 0, state_of(1.0))}
    )
    assert write_manifest(origin.folder, files) == origin


def state_of(number: float) -> Value:
    return Value((("parameter.weight", torch.full((3,), number)),))


def test_an_attempt_that_takes_long_has_not_failed(hears: Hears) -> None:
    with _Overdue(hears, TEN, 1, every=0.01):
        assert hears.told.get() == ("being read", 0.01)
        assert hears.told.get() == ("being read", 0.02)
    report = report_of("n2", 3, attend_messages.being_read(1, TEN, 20.0))
    assert report == reports.Unread(
        node="n2", incarnation=3, era=1, origin=TEN, why="it has taken 20 s so far", being_read=True
    )


def test_nothing_more_is_read_once_nobody_wants_it(tmp_path: Path, hears: Hears) -> None:
    hears.wants = False
    origin = Origin(10, f"{tmp_path}/step-00000010", "a" * 64)
    restorer = Restorer(hears)
    restorer._run(origin, [0], 1)
    assert hears.told.empty()


# ---- real processes -------------------------------------------------------------------------------------------------

STEPS, STAGES, EVERY, STRIKE = 30, 3, 10, 15


class StrikeWithoutStorage:
    """The storage vanishes, then every node; it is back when the run has said that it waits for it."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._away = folder.with_name("elsewhere")
        self._struck = False
        self.said = ""

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if not self._struck and status.step >= STRIKE and status.checkpoint >= EVERY:
            self._struck = True
            self._folder.rename(self._away)
            pids = self._cluster.pids()
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for name in self._cluster.names:
                    os.kill(pids[name], number)
        if "nobody sees the checkpoint" in status.detail and self._away.exists():
            self.said = status.detail
            shutil.rmtree(self._folder, ignore_errors=True)
            self._away.rename(self._folder)


def test_a_storage_that_vanished_with_all_nodes_costs_no_checkpoint(tmp_path: Path) -> None:
    changes = [f"job.steps={STEPS}", f"pipeline.stages={STAGES}", f"checkpoint.url=file://{tmp_path}/checkpoints"]
    job = load_job(EXAMPLES / "digits_mlp.toml", [*changes, f"checkpoint.every={EVERY}"])
    events: list[pb.ListEventsResponse] = []
    with LocalCluster(job, EXAMPLES, STAGES, folder=tmp_path / "run", patience=20.0) as cluster:
        strike = StrikeWithoutStorage(cluster, tmp_path / "checkpoints")
        outcome = train(cluster, lambda status, new, outcome: events.extend(new), strike)
    assert strike.said
    assert outcome.sha256 == run_plain(job).sha256
    rollbacks = [report for report in events if report.kind == "rollback"]
    assert all(int(report.fields["step"]) >= EVERY for report in rollbacks), [report.text for report in rollbacks]
    assert len(rollbacks) >= 1
    assert sum(report.kind == "waiting" and "cannot read" in report.text for report in events) <= 2 * STAGES


def test_a_checkpoint_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    """Every file has its hash, and the layers have the right names: broadcasting would take them silently."""
    url = f"file://{tmp_path}/checkpoints"
    changes = ["pipeline.stages=2", f"checkpoint.url={url}", "checkpoint.every=2"]
    job = load_job(EXAMPLES / "digits_mlp.toml", [*changes, "job.steps=2"])
    with LocalCluster(job, EXAMPLES, 2, folder=tmp_path / "first", patience=20.0) as cluster:
        train(cluster, lambda status, new, outcome: None)
    (found,) = find_checkpoints(url)
    assert found.manifest is not None
    states = {layer: read_layer(found.url, found.manifest, layer) for layer in found.manifest.files}
    layer = next(i for i, state in states.items() if any(n.startswith("parameter.") for n, _ in state.tensors))
    changed = Value(tuple((n, t[:1] if n.startswith("parameter.") else t) for n, t in states[layer].tensors))
    files = {**found.manifest.files, layer: write_layer(found.url, layer, changed)}
    write_manifest(found.url, replace(found.manifest, files=files))
    job = load_job(EXAMPLES / "digits_mlp.toml", [*changes, "job.steps=4"])
    with (
        pytest.raises(RunFailed, match=r"layer \d+ does not fit: its parameter\..* of shape") as failed,
        LocalCluster(job, EXAMPLES, 2, folder=tmp_path / "second", patience=20.0, resume=url) as cluster,
    ):
        train(cluster, lambda status, new, outcome: None)
    assert failed.value.code == 2


def test_a_folder_that_the_coordinator_does_not_share_makes_no_checkpoint(tmp_path: Path) -> None:
    """A file:// URL on two machines: the files of the other one are not here, and the run says so."""
    written(f"{tmp_path}/other", 10)
    files = {0: write_layer(f"{tmp_path}/other/step-00000010", 0, state_of(1.0))}
    with pytest.raises(OSError, match="one folder for all machines"):
        complete(f"{tmp_path}/mine", Manifest(job="job", step=10, fingerprint="code", loss=1.0, files=files))
    assert find_checkpoints(f"{tmp_path}/mine") == []
