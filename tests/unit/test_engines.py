"""What engines have in common: options, kits of files, a stage server that is kept running, a cluster by its name."""

import json
import os
import socket
import stat
import threading
from functools import partial
from pathlib import Path

import pytest

from culm.__main__ import main
from culm.engines.command import run
from culm.engines.engine import ENGINES, Wish, find, options_of
from culm.engines.named_cluster import enter, only_one
from culm.engines.services import StageServer, make_kit, packed, read_settings, unpacked
from culm.engines.slurm_task import Fate, fate, grace_seconds
from culm.local import clusters
from culm.local.clusters import Process, Record
from culm.pipeline import default_ports
from culm.pipeline.errors import JobError
from culm.terminal.unsaved import NO_CHECKPOINT, NOTHING_STALE_SAVED
from tests.hostile.commands import ROOT, in_process

DIGITS = ROOT / "examples" / "digits_mlp.toml"
BLOCKS = ROOT / "examples" / "blocks.toml"
WITHOUT_CLIENTS = [name for name in ENGINES if name != "ray"]  # Ray's own module wants Ray only when it is used


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CULM_HOME", str(tmp_path))
    monkeypatch.setenv("CULM_TLS_DIR", "")  # so that it is put back
    return tmp_path


def wish() -> Wish:
    return Wish(name="gpt", job="gpt.toml", job_folder=Path("/somewhere"), nodes=3, options={})


def kit(folder: Path) -> Path:
    (folder / "job.toml").write_text("[job]\n")
    make_kit(folder, wish())
    return folder


@pytest.mark.parametrize("name", ENGINES)
def test_every_option_of_an_engine_says_what_it_means(name: str) -> None:
    assert all(meaning for meaning in find(name).options.values())


def test_a_misspelt_engine_or_option_is_refused_with_the_closest_one() -> None:
    with pytest.raises(JobError, match="did you mean slurm"):
        find("slrum")
    slurm = find("slurm")
    assert options_of(["partition=spot", "sbatch=--gres=gpu:1"], slurm, "slurm") == {
        "partition": "spot",
        "sbatch": "--gres=gpu:1",
    }
    with pytest.raises(JobError, match=r"has no option 'partitoin'.*did you mean partition"):
        options_of(["partitoin=spot"], slurm, "slurm")
    with pytest.raises(JobError, match="write KEY=VALUE"):
        options_of(["partition"], slurm, "slurm")
    with pytest.raises(JobError, match=r"has no option 'partition'.*leave it out"):
        options_of(["partition=spot"], find("local"), "local")


def test_where_there_is_no_slurm_it_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(JobError, match=r"there is no sbatch here.*run this on a machine from which jobs are submitted"):
        find("slurm").up(home, wish(), print)
    assert grace_seconds() is None


SBATCH = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
case "$*" in *--partition=nosuch*) echo "allocation failure: Invalid partition name" >&2; exit 1;; esac
echo "sbatch: Job 5 to start at 2026-01-02T03:04:05 using 1 processors on nodes node2 in partition main" >&2
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], []),
        (["coordinator_partition=nosuch"], ["coordinator"]),
        (["partition=nosuch"], ["coordinator", "stages"]),
    ],
)
def test_a_dry_run_asks_slurm_and_leaves_nothing(
    options: list[str], said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(SBATCH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    words = ["up", str(DIGITS), "--on", "slurm", *(word for each in options for word in ("--with", each))]
    home = str(tmp_path / "home")
    ended = in_process(*words, "--dry-run", folder=tmp_path, CULM_HOME=home)
    refusal = "culm up: --on slurm, {}: sbatch refuses: allocation failure: Invalid partition name; mend what it says"
    assert ended.err.splitlines() == [NO_CHECKPOINT] + [refusal.format(part) for part in said]
    assert ended.code == (2 if said else 0)
    assert f"--output={home}/clusters/digits-mlp/slurm-coordinator.out" in ended.out, "what would be submitted"
    assert {path.name for path in tmp_path.iterdir()} == {"bin"}
    asked = (program.parent / "asked").read_text().splitlines()
    assert len(asked) == 2
    assert all("--test-only" in each for each in asked)
    if said:  # before the job is tried, and so before anything is submitted
        assert in_process(*words, folder=tmp_path, CULM_HOME=home).line == refusal.format("coordinator")
        assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("slurm", "there is no sbatch here; run this on a machine from which jobs are submitted to Slurm"),
        ("kubernetes", "there is no kubectl here; install it"),
        ("skypilot", "there is no sky here; install SkyPilot"),
    ],
)
def test_a_dry_run_without_the_clusters_client_says_so(
    engine: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ("up", str(DIGITS), "--on", engine, "--dry-run")
    assert f"--on {engine}: {said}" in in_process(*words, folder=tmp_path, CULM_HOME=str(tmp_path / "home")).line
    assert not any(tmp_path.iterdir())


def test_a_usual_port_that_is_taken_is_told_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, only the address at the end told it, and ``culm status`` asked whoever had the port."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        usual = f"127.0.0.1:{port}"
        monkeypatch.setattr(default_ports, "COORDINATOR_PORT", port)
        monkeypatch.setattr(default_ports, "COORDINATOR", usual)

        def told(*more: str) -> str:
            return in_process("up", str(DIGITS), "--dry-run", *more, folder=home).err

        mend = "say --cluster digits-mlp with culm status and its like, or choose a port with --coordinator-address"
        found = f"port {port} is taken by {{}}, so the coordinator will listen at another one; {mend}\n"
        assert told() == found.format("another process")
        assert told("--coordinator-address", "127.0.0.1:0") == ""
        refused = in_process("up", str(DIGITS), "--dry-run", "--coordinator-address", usual, folder=home)
        assert f"cannot listen on {usual}: port in use; choose another" in refused.line
        here = Process.of(os.getpid())
        assert here is not None
        clusters.write(clusters.make_folder("gpt"), Record(name="gpt", address=usual, processes={"coordinator": here}))
        assert told() == found.format("the cluster gpt")


def test_what_is_lost_without_checkpoints_is_told_once_and_where_machines_can_go(home: Path) -> None:
    def told(*more: str, job: Path = DIGITS) -> list[str]:
        ended = in_process("up", str(job), "--dry-run", *more, folder=home)
        return [line for line in ended.err.splitlines() if "[checkpoint]" in line]

    slurm = ("--on", "slurm", "--with", "partition=main")
    saves = ("--set", "checkpoint.url=ck", "--set", "checkpoint.every=9")
    assert told(*slurm) == [NO_CHECKPOINT]
    assert told(*slurm, *saves) == []
    assert told(*slurm, "--json") == []
    assert told() == [], "all nodes are on this machine"
    stale = told("--set", "graph.staleness=1", job=BLOCKS)
    assert stale == [NOTHING_STALE_SAVED.format(staleness=1)], "one server is enough to lose"
    assert told(job=BLOCKS) == []


def test_a_kit_travels_with_what_its_role_needs_and_no_other_key(tmp_path: Path) -> None:
    files = packed(kit(tmp_path), "stage")
    assert set(files) == {"settings.json", "job.toml", *(f"certs/stage/{n}" for n in ("ca.crt", "tls.crt", "tls.key"))}
    there = tmp_path / "there"
    unpacked(files, there)
    assert read_settings(there) == read_settings(tmp_path)
    assert read_settings(there).run.startswith("gpt-")
    key = there / "certs" / "stage" / "tls.key"
    assert key.read_bytes() == files["certs/stage/tls.key"]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(there.stat().st_mode) == 0o700


def test_a_stage_server_is_started_again_until_it_is_no_longer_needed(tmp_path: Path) -> None:
    """Nobody listens at the address: each start ends with code 2, and the next one is tried."""
    asked: list[str] = []
    log = tmp_path / "stage.log"

    def address() -> str:
        asked.append("127.0.0.1:1")
        return "" if len(asked) == 1 else "127.0.0.1:1"

    def failures() -> int:
        return log.read_text().count("culm stage: ") if log.exists() else 0

    os.environ["CULM_CONNECT_TIMEOUT"] = "0.1"
    try:
        server = StageServer(kit(tmp_path), "n0", log, address, is_down=lambda: failures() >= 2)
        running = threading.Thread(target=server.run)
        running.start()
        running.join(timeout=120)
    finally:
        del os.environ["CULM_CONNECT_TIMEOUT"]
    assert not running.is_alive()
    assert len(asked) >= 3
    assert failures() >= 2


def test_a_notice_to_a_stage_server_that_does_not_run_ends_it(tmp_path: Path) -> None:
    server = StageServer(kit(tmp_path), "n0", tmp_path / "stage.log", lambda: "")
    told = [server.told]
    server.notice(12.0)
    assert [*told, server.told] == [False, True]
    server.run()
    assert (tmp_path / "n0.notice").read_text() == "12.0"


def test_a_cluster_is_listed_and_entered_by_its_name(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(home))
    record = Record(
        name="gpt", address="10.0.0.1:7070", engine="slurm", handles={"coordinator": "12"}, certificates="/c"
    )
    clusters.write(clusters.make_folder("gpt"), record)
    assert clusters.read(clusters.folder_of("gpt")) == record
    assert only_one() == "gpt"
    assert enter("gpt") == "10.0.0.1:7070"
    assert os.environ["CULM_TLS_DIR"] == "/c"
    with pytest.raises(JobError, match=r"a cluster of that name is up at 10\.0\.0\.1:7070"):
        clusters.make_folder("gpt")
    assert main(["clusters", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["gpt"]
    assert told["engine"] == "slurm"
    assert "squeue" in told["parts"]["slurm"]  # which is not here
    with pytest.raises(JobError, match=r"no cluster of that name is up.*name one that is: gpt"):
        enter("gtp")


def test_the_record_of_another_version_is_read_as_far_as_it_is_known(home: Path) -> None:
    here = Process.of(os.getpid())
    assert here is not None
    record = Record(name="gpt", address="127.0.0.1:1", processes={"keeper": here})
    clusters.write(clusters.make_folder("gpt"), record)
    file = clusters.folder_of("gpt") / clusters.RECORD
    document = json.loads(file.read_text())
    document["processes"]["keeper"]["zone"] = document["zone"] = "of a later version"
    file.write_text(json.dumps(document))
    assert clusters.read(file.parent) == record
    del document["processes"]  # of an earlier version
    file.write_text(json.dumps(document))
    assert clusters.read(file.parent) == Record(name="gpt", address="127.0.0.1:1")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "gpt", "processes": {"n0": {}}}'])
def test_a_record_that_cannot_be_read_stops_no_command_that_is_about_others(
    text: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = clusters.make_folder("gpt") / clusters.RECORD
    file.write_text(text)
    clusters.write(clusters.make_folder("mlp"), Record(name="mlp", engine="slurm", handles={"coordinator": "12"}))
    assert main(["clusters", "--json"]) == 0
    told = capsys.readouterr()
    assert list(json.loads(told.out)) == ["mlp"]
    assert told.err.count(f"culm: {file}: the cluster's record cannot be read (") == 1
    assert only_one() == "mlp"
    assert main(["down", "gpt"]) == 2
    assert f"culm down: {file}: the cluster's record cannot be read (" in capsys.readouterr().err


def test_a_command_of_the_cluster_that_fails_is_told_in_a_line() -> None:
    ask = partial(run, where="--on slurm", mend="see whether it answers", seconds=20.0)
    assert ask(["sh", "-c", "echo $WORD", "x"], variables={"WORD": "told"}) == "told\n"
    with pytest.raises(JobError, match=r"^--on slurm: sh refuses: no such partition; mend what it says$"):
        ask(["sh", "-c", "echo first >&2; echo '\x1b[31mno such partition\x1b[0m' >&2; echo >&2; exit 3"])
    with pytest.raises(JobError, match=r": Slurm refuses: code 3; "):
        ask(["sh", "-c", "exit 3"], who="Slurm")
    assert ask(["sh", "-c", "echo Invalid job >&2; exit 1"], allowed="Invalid job") == ""
    with pytest.raises(JobError, match=r": sleep has not answered in 0\.1 s; see whether it answers$"):
        ask(["sleep", "60"], seconds=0.1)
    with pytest.raises(JobError, match=r": no-such-command does not work"):
        ask(["no-such-command"])


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("JobId=7 JobState=RUNNING EndTime=2000000000 PreemptTime=None", Fate.STAYS),
        ("JobId=7 JobState=RUNNING EndTime=Unknown PreemptTime=None", Fate.STAYS),
        ("JobId=7 JobState=RUNNING EndTime=1060 PreemptTime=None", Fate.GOES),
        ("JobId=7 JobState=RUNNING EndTime=2000000000 PreemptTime=1000", Fate.GOES),
        ("JobId=7 JobState=COMPLETING EndTime=1060 PreemptTime=None", Fate.ENDS),
        ("JobId=7 JobState=CANCELLED EndTime=1000", Fate.ENDS),
    ],
)
def test_a_task_of_slurm_that_hears_sigterm_learns_what_becomes_of_it(shown: str, expected: Fate) -> None:
    assert fate(shown, now=1000.0) is expected
