"""``culm up --on kubernetes``: what it hands to kubectl, and what it makes of kubectl's answers."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from culm.engines.engine import Wish
from culm.engines.kubernetes import Kubernetes
from culm.local import clusters
from culm.pipeline.errors import JobError

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits_mlp.toml"
# Writes down what it is asked, and has the pods of the file beside it.
KUBECTL = f"""#!{sys.executable}
import pathlib, sys
here = pathlib.Path(__file__).parent
with open(here / "asked", "a") as asked:
    print(*sys.argv[1:], file=asked)
if "namespace" in sys.argv and "get" in sys.argv:
    print((here / "namespaces").read_text() if (here / "namespaces").exists() else "", end="")
elif "get" in sys.argv:
    print((here / "pods.json").read_text())
elif "port-forward" in sys.argv:
    print("Forwarding from 127.0.0.1:45678 -> 7070", flush=True)
elif "logs" in sys.argv:
    print("culm coordinator listening on 0.0.0.0:7070")
"""


def wish(**options: str) -> Wish:
    return Wish(name="Gpt_2", job=str(DIGITS), job_folder=DIGITS.parent, nodes=3, options=options)


def pod(name: str, ready: bool, **status: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    labels = {"app": name.rpartition("-")[0]}
    return {"metadata": {"name": name, "labels": labels}, "status": {"conditions": conditions, **status}}


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the kubectl that is found first."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CULM_HOME", str(tmp_path))
    return program.parent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CULM_HOME", str(tmp_path))
    made = clusters.make_folder("Gpt_2")
    shutil.copy(DIGITS, made / "job.toml")
    return made


def test_it_applies_waits_and_is_reached_and_deleted(kubectl: Path, folder: Path) -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
    pods = [pod("culm-coordinator-1", True, phase="Running"), pod("culm-stage-1", False, containerStatuses=[waiting])]
    (kubectl / "pods.json").write_text(json.dumps({"items": pods}))
    engine = Kubernetes()
    record = engine.up(folder, wish(context="prod"), print)
    assert clusters.read(folder) == record
    assert record.handles == {"namespace": "culm-gpt-2", "context": "prod"}
    assert engine.reach(folder, record) == "127.0.0.1:45678"
    assert engine.parts(folder, record) == {"culm-coordinator-1": "Running", "culm-stage-1": "ImagePullBackOff"}
    logs = engine.logs(folder, record)
    assert list(logs["culm-coordinator-1"]()) == ["culm coordinator listening on 0.0.0.0:7070"]
    assert engine.down(folder, record) == ["culm-coordinator-1", "culm-stage-1"]
    asked = (kubectl / "asked").read_text().splitlines()
    assert asked[0] == "--context prod --namespace culm-gpt-2 get namespace culm-gpt-2 --ignore-not-found --output name"
    assert asked[1] == f"--context prod --namespace culm-gpt-2 apply --kustomize {folder / 'overlay'}"
    assert asked[-1] == "--context prod --namespace culm-gpt-2 delete namespace culm-gpt-2 --ignore-not-found"
    down = clusters.read(folder)
    assert down is not None
    assert not down.is_up
    assert engine.down(folder, down) == []


def test_a_namespace_of_somebody_else_is_neither_used_nor_deleted(kubectl: Path, folder: Path) -> None:
    assert Kubernetes().refusals(folder, wish()) == []
    (kubectl / "namespaces").write_text("namespace/culm-gpt-2\n")
    (refused,) = Kubernetes().refusals(folder, wish())
    assert "the namespace culm-gpt-2 exists already" in str(refused)
    with pytest.raises(JobError, match=r"the namespace culm-gpt-2 exists already.*another --name"):
        Kubernetes().up(folder, wish(), print)
    known = clusters.read(folder)
    assert known is not None
    assert Kubernetes().down(folder, known) == []
    asked = (kubectl / "asked").read_text()
    assert "apply" not in asked
    assert "delete" not in asked


def test_a_run_that_begins_anew_over_checkpoints_is_refused(kubectl: Path, folder: Path) -> None:
    """Its coordinator would be started without that word, and go on from the newest one."""
    (refused,) = Kubernetes().refusals(folder, replace(wish(), new_run=True))
    assert str(refused).startswith("--new-run: this engine cannot begin anew over checkpoints")
    assert "--set checkpoint.url=URL" in str(refused)


def test_without_kubectl_it_says_so(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match=r"there is no kubectl here.*install it"):
        Kubernetes().plan(folder, wish())


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_what_it_renders_is_this_run(folder: Path) -> None:
    text = Kubernetes().plan(folder, wish(registry="registry.example/me", tag="v2", anywhere="1"))
    words = ["kubectl", "kustomize", str(folder / "overlay")]
    assert subprocess.run(words, capture_output=True, text=True).stderr == "", "kubectl warns of nothing"
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}
    spaces = {each["metadata"].get("namespace") for kind, each in objects.items() if kind[0] != "Namespace"}
    assert spaces == {"culm-gpt-2"}
    assert ("Namespace", "culm-gpt-2") in objects
    stage = objects["Deployment", "culm-stage"]["spec"]
    assert stage["replicas"] == 3
    container = stage["template"]["spec"]["containers"][0]
    assert container["image"] == "registry.example/me/stage:v2"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert "nodeAffinity" not in stage["template"]["spec"]["affinity"]
    runs = {
        variable["value"]
        for name in ("culm-coordinator", "culm-stage")
        for variable in objects["Deployment", name]["spec"]["template"]["spec"]["containers"][0]["env"]
        if variable["name"] == "CULM_RUN"
    }
    assert len(runs) == 1
    (job,) = (each["data"]["job.toml"] for kind, each in objects.items() if kind[0] == "ConfigMap")
    assert job == DIGITS.read_text()
    for role in ("coordinator", "stage", "operator", "redis"):
        assert set(objects["Secret", f"culm-tls-{role}"]["data"]) == {"ca.crt", "tls.crt", "tls.key"}
    # The certificates of Redis name the host that its clients ask for.
    certificate = folder / "certs" / "redis" / "tls.crt"
    words = ["openssl", "x509", "-in", str(certificate), "-noout", "-ext", "subjectAltName"]
    assert "DNS:culm-redis" in subprocess.run(words, capture_output=True, text=True).stdout
