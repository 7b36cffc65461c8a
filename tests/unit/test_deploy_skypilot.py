"""``deploy/skypilot``: secrets, storage, and the loop around a node."""

import subprocess
import tomllib
from pathlib import Path

from culm.engines.skypilot import STORAGES
from tests.unit.deployed import DEPLOY, ROOT, documents


def test_whoever_listens_for_others_has_certificates() -> None:
    """Without, the command ends with 2: SkyPilot's files did. The page says who makes them, and where."""
    readme = (DEPLOY / "skypilot" / "README.md").read_text()
    for name in ("coordinator", "stage"):
        (task,) = documents(DEPLOY / "skypilot" / f"{name}.yaml")
        assert "CULM_LISTEN=0.0.0.0" in task["run"]
        assert "CULM_TLS_DIR=~/culm-tls" in task["run"]
        assert {"CA_CRT", "TLS_CRT", "TLS_KEY"} <= set(task["secrets"])
        assert not any(task["secrets"].values())
        assert "~/culm-tls" not in task.get("file_mounts", {}), "managed jobs would put the keys into a bucket"
        assert all(f"--secret {secret}" in readme.replace("\\\n", " ") for secret in task["secrets"])
    assert "culm certs init ~/culm-certs" in readme


def test_skypilots_machines_can_reach_the_storage_that_the_page_speaks_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {scheme: STORAGES[scheme] for scheme in project if scheme in STORAGES} == {
        scheme: project[scheme][0].partition(">")[0] for scheme in STORAGES if scheme in project
    }
    for name in ("coordinator", "stage"):
        (task,) = documents(DEPLOY / "skypilot" / f"{name}.yaml")
        assert "pip install --quiet $PACKAGES $STORAGE\n" in task["setup"]
        assert "pip install --quiet -c constraints.txt pip $STORAGE\n" in task["setup"]
        assert task["envs"]["STORAGE"] == STORAGES["gs"]


def test_skypilot_starts_a_node_that_died_and_tells_it_from_one_that_handed_over(tmp_path: Path) -> None:
    """And from one whose run is done: its machine is given back."""
    (task,) = documents(DEPLOY / "skypilot" / "stage.yaml")
    loop = task["run"][task["run"].index("while true") :]
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    node = tmp_path / ".venv" / "bin" / "culm"
    node.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = status ]; then cat phase; exit; fi\n'
        "echo started >> log\ncode=$(head -n 1 codes)\nsed -i 1d codes\n"
        '[ -s codes ] || echo \'{"job": "digits", "phase": "done"}\' > phase\nexit $code\n'
    )
    node.chmod(0o755)
    (tmp_path / "phase").write_text('{"job": "digits", "phase": "running"}\n')
    (tmp_path / "codes").write_text("137\n0\n1\n2\n0\n")
    stubbed = f"set -e\nsleep() {{ echo waited $1 >> log; }}\n{loop}"
    done = subprocess.run(["bash", "-c", stubbed], cwd=tmp_path, timeout=60)
    assert done.returncode == 0
    expected = [
        "started",
        "waited 1",
        "started",
        "waited 180",
        "started",
        "waited 1",
        "started",
        "waited 30",
        "started",
    ]
    assert (tmp_path / "log").read_text().split("\n")[:-1] == expected


def test_a_task_without_its_secrets_ends_and_names_the_missing_one(tmp_path: Path) -> None:
    """SkyPilot starts such a task."""
    for name in ("coordinator", "stage"):
        (task,) = documents(DEPLOY / "skypilot" / f"{name}.yaml")
        environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "CA_CRT": "QUJD", "TLS_CRT": "QUJD"}
        words = ["bash", "-c", task["run"]]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert done.stderr.strip().endswith("TLS_KEY: is a secret: add --secret")
        assert not (tmp_path / "culm-tls").exists()
