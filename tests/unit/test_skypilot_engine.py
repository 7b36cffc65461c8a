"""``culm up --on skypilot``: what it hands to SkyPilot and ssh, and what it makes of their answers."""

import base64
import json
import os
import shlex
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from culm.engines.engine import Wish
from culm.engines.skypilot import SkyPilot
from culm.local import clusters
from culm.pipeline.errors import JobError

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits_mlp.toml"
# Writes down what it is asked, with the secrets that it is told; has the machines and jobs that it was asked for.
SKY = f"""#!{sys.executable}
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
words = sys.argv[1:]
named = [words[i + 1] for i, word in enumerate(words) if word == "--secret"]
told = {{"words": words, "secrets": {{name: os.environ[name] for name in named}}}}
part = here / f"asked-{{os.getpid()}}"
part.write_text(json.dumps(told))
part.rename(here / f"{{part.stat().st_mtime_ns}}-{{os.getpid()}}.json")
asked = [json.loads(each.read_text())["words"] for each in sorted(here.glob("*.json"))]
jobs = sorted(each[each.index("--name") + 1] for each in asked if each[:2] == ["jobs", "launch"])
if words[:2] == ["jobs", "queue"]:
    if not jobs:
        print("sky.exceptions.ClusterNotUpError: \\x1b[1mNo in-progress managed jobs.\\x1b[0m", file=sys.stderr)
        sys.exit(1)
    print("Fetching managed job statuses...")
    states = [("RUNNING", name) for name in jobs] + [("FAILED", "an-older-one"), ("RUNNING", "of-somebody-else")]
    states += [("FAILED", jobs[0]), ("PENDING", jobs[1])]  # of nodes that were launched twice
    found = enumerate(states, 7)
    print(json.dumps([{{"job_id": i, "job_name": name, "status": state}} for i, (state, name) in found]))
elif words[0] == "status":
    up = any(each[0] == "launch" for each in asked)
    print("Cluster(s) not found." * (not up) + "\\n" + json.dumps([{{"name": words[1], "status": "UP"}}] * up))
elif words[0] == "queue":
    print(json.dumps({{words[1]: [{{"job_id": 1, "status": (here / "job").read_text()}}]}}))
elif "logs" in words:
    print("culm coordinator: the job file is at fault")
    sys.exit(101)
elif words[0] == "launch" and (here / "refuse").exists():
    print("\\x1b[31msky.exceptions.ResourcesUnavailableError: no machine\\x1b[0m", file=sys.stderr)
    sys.exit(1)
"""
# A tunnel that is there until it is killed; else the addresses of the coordinator's machine, once it is asked again.
SSH = f"""#!{sys.executable}
import pathlib, socket, sys, time
here = pathlib.Path(__file__).parent
if "-N" in sys.argv:
    if (here / "refuse").exists():
        sys.exit("ssh: connect to host culm port 22: Connection refused")
    host, port, *_ = sys.argv[sys.argv.index("-L") + 1].split(":")
    with socket.create_server((host, int(port))) as server:
        while True:
            server.accept()[0].close()
(here / "ssh-asked").write_text(sys.argv[-1])
if (here / "asked-before").exists():
    print("10.0.0.2 172.17.0.1")
else:
    (here / "asked-before").touch()
    sys.exit(1)
"""


def wish(**options: str) -> Wish:
    return Wish(name="gpt.2", job=str(DIGITS), job_folder=DIGITS.parent, nodes=4, options=options)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the sky and the ssh that are found first."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sky", SKY), ("ssh", SSH)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (programs / "job").write_text("RUNNING")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return programs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CULM_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    made = clusters.make_folder("gpt.2")
    shutil.copy(DIGITS, made / "job.toml")
    return made


def asked(here: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(here.glob("*.json"))]


def variables(words: list[str]) -> dict[str, str]:
    pairs = [words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--env"]
    return dict(pairs)


def test_it_launches_waits_and_is_reached_and_ended(here: Path, folder: Path) -> None:
    told: list[str] = []
    engine = SkyPilot()
    record = engine.up(folder, wish(infra="aws/us-east-1/us-east-1a,aws/us-east-1/us-east-1b"), told.append)
    assert clusters.read(folder) == record
    assert record.address == "10.0.0.2:7070"
    assert "waiting for the coordinator: its job is RUNNING" in told
    assert "/dev/tcp/127.0.0.1/7070" in (here / "ssh-asked").read_text()
    cluster = record.handles["coordinator"]
    (coordinator,) = (each for each in asked(here) if each["words"][0] == "launch")
    assert coordinator["words"][coordinator["words"].index("--cluster") + 1] == cluster
    assert coordinator["words"][coordinator["words"].index("--infra") + 1] == "aws/us-east-1"
    stages = [each for each in asked(here) if each["words"][:2] == ["jobs", "launch"]]
    assert {variables(each["words"])["CULM_NAME"] for each in stages} == {"n0", "n1", "n2", "n3"}
    assert {variables(each["words"])["CULM_COORDINATOR"] for each in stages} == {"10.0.0.2:7070"}
    runs = {variables(each["words"])["CULM_RUN"] for each in (coordinator, *stages)}
    assert len(runs) == 1
    assert cluster == f"culm-{runs.pop()}-coordinator"
    nodes = dict.fromkeys(("n0", "n1", "n2", "n3"), "RUNNING")
    assert engine.parts(folder, record) == {"coordinator": "UP", **nodes, "n1": "RUNNING, PENDING"}
    assert list(engine.logs(folder, record)["n1"]()) == ["culm coordinator: the job file is at fault"]
    host, _, port = engine.reach(folder, record).partition(":")
    with socket.create_connection((host, int(port))):
        pass
    assert engine.down(folder, record) == ["coordinator", *nodes]
    (cancelled, ended) = [each["words"] for each in asked(here) if {"cancel", "down"} & set(each["words"])]
    assert cancelled[:3] == ["jobs", "cancel", "--yes"]
    assert sorted(cancelled[3:]) == ["10", "14", "7", "8", "9"]
    assert ended == ["down", "--yes", cluster]
    down = clusters.read(folder)
    assert down is not None
    assert not down.is_up
    assert engine.down(folder, down) == []


def test_keys_travel_as_secrets_and_stand_on_no_command_line(here: Path, folder: Path) -> None:
    engine = SkyPilot()
    shown = engine.plan(folder, wish())
    record = engine.up(folder, wish(), print)
    launches = [each for each in asked(here) if "launch" in each["words"]]
    password = (folder / "redis-password").read_text()
    for each in launches:
        role = "coordinator" if each["words"][0] == "launch" else "stage"
        files = {"CA_CRT": "ca.crt", "TLS_CRT": "tls.crt", "TLS_KEY": "tls.key"}
        expected = {name: (folder / "certs" / role / file).read_bytes() for name, file in files.items()}
        found = dict(each["secrets"])
        assert found.pop("REDIS_PASSWORD", None) == (password if role == "coordinator" else None)
        assert {name: base64.b64decode(value) for name, value in found.items()} == expected
        assert not any(value in word for value in each["secrets"].values() for word in each["words"])
        assert not any(value in shown for value in each["secrets"].values())
        task = yaml.safe_load(Path(each["words"][-1]).read_text())
        assert set(each["secrets"]) == set(task["secrets"])
        assert set(variables(each["words"])) <= set(task["envs"])
    assert record.certificates == str(folder / "certs" / "operator")


def test_what_it_would_run_is_told_and_each_node_prefers_another_zone(here: Path, folder: Path) -> None:
    text = SkyPilot().plan(folder, wish(launch="--cpus 8+ --no-use-spot", coordinator_launch="--cpus 4"))
    assert not asked(here)
    lines = [shlex.split(line) for line in text.splitlines() if line.startswith("sky ")]
    assert [words[:3] for words in lines] == [["sky", "launch", "--yes"], *[["sky", "jobs", "launch"]] * 4]
    assert "--cpus" in lines[0]
    assert all("--no-use-spot" in words for words in lines[1:])
    firsts = []
    for words in lines[1:]:
        places = yaml.safe_load(Path(words[-1]).read_text())["resources"]["ordered"]
        assert len(places) == len({place["infra"] for place in places}) == 3
        firsts.append(places[0]["infra"][-1])
    assert firsts == ["a", "b", "c", "a"]


def test_what_machines_install_and_rent_follows_from_the_job_and_the_folder(
    here: Path, folder: Path, tmp_path: Path
) -> None:
    shown = [shlex.split(x) for x in SkyPilot().plan(folder, wish()).splitlines() if x.startswith("sky ")]
    told = variables(shown[1])
    assert (told["PACKAGES"], told["STORAGE"], told["MODULES"]) == ("", "", "examples")
    assert shown[1][shown[1].index("--gpus") + 1] == "none"
    job = DIGITS.read_text().replace("[job]\n", '[job]\ndevice = "cuda"\n')
    (folder / "job.toml").write_text(f'{job}\n[checkpoint]\nurl = "s3://bucket/run"\nevery = 10\n')
    elsewhere = replace(wish(workdir=str(tmp_path)), job_folder=ROOT)
    with pytest.raises(JobError, match=r"nothing says how Culm gets to the machines; say --with pip=PACKAGE"):
        SkyPilot().plan(folder, elsewhere)
    elsewhere = replace(elsewhere, options={**elsewhere.options, "pip": "./culm.whl torchvision"})
    shown = [shlex.split(x) for x in SkyPilot().plan(folder, elsewhere).splitlines() if x.startswith("sky ")]
    told = variables(shown[1])
    assert (told["PACKAGES"], told["STORAGE"], told["MODULES"]) == ("./culm.whl torchvision", "s3fs", ".")
    assert "--gpus" not in shown[1]
    assert shown[0][shown[0].index("--workdir") + 1] == str(tmp_path)


def test_whoever_refuses_is_quoted_without_colours(here: Path, folder: Path) -> None:
    (here / "refuse").touch()
    with pytest.raises(JobError, match=r"SkyPilot refuses: sky\.exceptions\.ResourcesUnavailableError: no machine; "):
        SkyPilot().up(folder, wish(), print)
    record = clusters.read(folder)
    assert record is not None
    with pytest.raises(JobError, match=r"ssh does not reach the coordinator's machine: ssh: connect to host culm"):
        SkyPilot().reach(folder, record)


def test_a_coordinator_whose_job_has_ended_is_not_waited_for(here: Path, folder: Path) -> None:
    (here / "job").write_text("FAILED")
    with pytest.raises(JobError, match=r"the coordinator's job is FAILED: culm coordinator: the job file is at fault"):
        SkyPilot().up(folder, wish(), print)
    record = clusters.read(folder)
    assert record is not None
    assert SkyPilot().down(folder, record) == ["coordinator"]


def test_a_task_file_of_ones_own_needs_a_place_for_zones(here: Path, folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("name: own\nrun: 'true'\n")
    assert "name: own" in SkyPilot().plan(folder, wish(task=str(own)))
    with pytest.raises(JobError, match="the task file has no place for zones"):
        SkyPilot().plan(folder, wish(task=str(own), infra="aws/us-east-1"))
    with pytest.raises(JobError, match="--with task: the task file cannot be read"):
        SkyPilot().plan(folder, wish(task=str(tmp_path / "nowhere")))


def test_a_run_that_begins_anew_over_checkpoints_is_refused(here: Path, folder: Path) -> None:
    refused = SkyPilot().refusals(folder, replace(wish(), new_run=True))
    assert str(refused[0]).startswith("--new-run: this engine cannot begin anew over checkpoints")


def test_without_sky_it_says_so(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match=r"there is no sky here.*install SkyPilot"):
        SkyPilot().plan(folder, wish())


def test_skypilot_takes_the_task_files(here: Path, folder: Path) -> None:
    sky = pytest.importorskip("sky", reason="SkyPilot is not installed")
    SkyPilot().plan(folder, wish())
    for file in (*(ROOT / "deploy" / "skypilot").glob("*.yaml"), *folder.glob("*.yaml")):
        task = sky.Task.from_yaml(str(file))
        assert task.num_nodes == 1
        assert {reference.name for reference in task.managed_secret_refs} >= {"CA_CRT", "TLS_CRT", "TLS_KEY"}
