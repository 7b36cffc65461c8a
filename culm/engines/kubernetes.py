"""Kubernetes: the manifests of ``deploy/kubernetes``, with this run's job, names, certificates and number of nodes.

``kubectl`` does the work. What is written here is a small overlay over these manifests, which stands in the cluster's
folder and may be looked at, changed and applied by hand:

    overlay/kustomization.yaml     what this run changes
    overlay/base/                  deploy/kubernetes, as it is
    overlay/certs/, job.toml       what becomes secrets, and the job

Nobody outside of the cluster reaches the coordinator. Commands with ``--cluster`` reach it through ``kubectl
port-forward``, which ends with them.
"""

import json
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import culm
from culm.engines.command import last_words, refusals_of, run
from culm.engines.engine import Tell, Wish, refuse_new_run
from culm.engines.local import lines_of
from culm.engines.services import DAYS, NO_LIMIT, make_kit, read_settings
from culm.local import clusters
from culm.local.authority import issue
from culm.local.clusters import Record
from culm.local.tied import tied
from culm.pipeline import private
from culm.pipeline.errors import JobError

WHERE = "--on kubernetes"
ROLES = ("coordinator", "stage", "operator", "redis")
ASK_SECONDS = 600.0  # a namespace may take minutes to be deleted
FORWARD_SECONDS = 20.0
POLL_SECONDS = 1.0
FORWARD_POLL_SECONDS = 0.05
FORWARDED = re.compile(r"Forwarding from (127\.0\.0\.1:\d+)")
_run = partial(run, where=WHERE, mend="see whether it reaches your cluster", seconds=ASK_SECONDS)


class Kubernetes:
    more = "kubectl scale deployment/culm-stage --replicas=N, in the cluster's namespace"
    options: Mapping[str, str] = {
        "context": "of kubectl; default: its present one",
        "registry": "where the images lie, such as us-docker.pkg.dev/PROJECT/culm; default: culm, on the machines",
        "tag": "of the images; default: latest",
        "anywhere": "1: stage servers run on machines that are no spot machines, too",
    }

    def up(self, folder: Path, wish: Wish, tell: Tell) -> Record:
        overlay = _overlay(folder, wish)
        handles = _handles(wish)
        certificates = str(folder / "certs" / "operator")
        record = Record(name=wish.name, job=wish.job, engine="kubernetes", handles=handles, certificates=certificates)
        # ``down`` deletes the namespace whole. So it is on record only once it is known to be this run's own.
        _refuse_namespace(record)
        clusters.write(folder, record)
        _kubectl(record, "apply", "--kustomize", str(overlay))
        tell(NO_LIMIT)
        told = ""
        while not _is_ready(record):
            if (now := f"waiting for the coordinator's pod: {_in_words(self.parts(folder, record))}") != told:
                tell(now)
                told = now
            time.sleep(POLL_SECONDS)
        record = replace(record, address=f"service/culm-coordinator in {handles['namespace']}")
        clusters.write(folder, record)
        return record

    def plan(self, folder: Path, wish: Wish) -> str:
        return _run(["kubectl", "kustomize", str(_overlay(folder, wish))])

    def refusals(self, folder: Path, wish: Wish) -> list[JobError]:
        record = Record(name=wish.name, handles=_handles(wish))
        return refusals_of([partial(refuse_new_run, wish), partial(_refuse_namespace, record)])

    def reach(self, folder: Path, record: Record) -> str:
        words = [*_words(record), "port-forward", "service/culm-coordinator", ":7070"]
        log = folder / "port-forward.log"
        # Into a file: a pipe would end where ``culm ui`` becomes another program, and kubectl with it.
        with open(log, "wb", opener=private.opener) as output:
            forward = subprocess.Popen(tied(words), stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        deadline = time.monotonic() + FORWARD_SECONDS
        while time.monotonic() < deadline:
            ended = forward.poll() is not None
            if found := FORWARDED.search(log.read_text(errors="replace")):
                return found[1]
            if ended:
                break
            time.sleep(FORWARD_POLL_SECONDS)
        forward.kill()
        said = last_words(lines_of(log))
        raise JobError(f"kubectl forwards no port: {said}", WHERE, "see culm logs, and kubectl get pods")

    def parts(self, folder: Path, record: Record) -> Mapping[str, str]:
        return {pod["metadata"]["name"]: _state(pod) for pod in _pods(record)}

    def logs(self, folder: Path, record: Record) -> Mapping[str, Callable[[], Iterator[str]]]:
        return {pod["metadata"]["name"]: partial(_lines, record, pod["metadata"]["name"]) for pod in _pods(record)}

    def down(self, folder: Path, record: Record) -> list[str]:
        if not record.handles:
            return []
        ran = list(self.parts(folder, record))
        _kubectl(record, "delete", "namespace", record.handles["namespace"], "--ignore-not-found")
        clusters.write(folder, replace(record, handles={}))
        return ran


def _handles(wish: Wish) -> dict[str, str]:
    return {"namespace": _namespace(wish), "context": wish.options.get("context", "")}


def _refuse_namespace(record: Record) -> None:
    """Raises JobError where the run's namespace exists already, or where kubectl reaches no cluster."""
    namespace = record.handles["namespace"]
    if _kubectl(record, "get", "namespace", namespace, "--ignore-not-found", "--output", "name").strip():
        raise JobError(f"the namespace {namespace} exists already", WHERE, "give this cluster another --name")


def _namespace(wish: Wish) -> str:
    """As Kubernetes wants names: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9-]+", "-", f"culm-{wish.name.lower()}").strip("-")


def _overlay(folder: Path, wish: Wish) -> Path:
    """Writes it, and returns its folder."""
    if shutil.which("kubectl") is None:
        raise JobError("there is no kubectl here", WHERE, "install it, and let it reach your cluster")
    make_kit(folder, wish)
    settings = read_settings(folder)
    issue(folder / "certs", "redis", "redis", DAYS, settings.run)
    overlay = private.make_folder(folder / "overlay")
    manifests = Path(culm.__file__).resolve().parent / "deploy" / "kubernetes"
    shutil.copytree(manifests, overlay / "base", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.md"))
    shutil.copy(folder / "job.toml", overlay / "job.toml")
    for role in ROLES:
        shutil.copytree(folder / "certs" / role, overlay / "certs" / role, dirs_exist_ok=True)
    private.write_text(overlay / "redis-password", secrets.token_urlsafe(32))
    private.write_text(overlay / "kustomization.yaml", json.dumps(_kustomization(wish, settings.run), indent=2))
    return overlay


def _patches(wish: Wish, run: str) -> list[dict[str, Any]]:
    environment = {"CULM_RUN": run, "CULM_NODES": str(wish.nodes), "CULM_RESUME": wish.resume, "CULM_ALLOW": wish.allow}
    patches = [
        _environment("coordinator", {name: value for name, value in environment.items() if value}),
        _environment("stage", {"CULM_RUN": run}),
    ]
    if wish.options.get("anywhere", "") not in ("", "0"):
        without = {"spec": {"template": {"spec": {"affinity": {"nodeAffinity": None}}}}}
        patches.append({**_deployment("stage"), **without})
    return patches


def _kustomization(wish: Wish, run: str) -> dict[str, Any]:
    """As JSON it is YAML too."""
    registry, tag = wish.options.get("registry", "culm").rstrip("/"), wish.options.get("tag", "latest")
    files = {role: [f"certs/{role}/{name}" for name in ("ca.crt", "tls.crt", "tls.key")] for role in ROLES}
    plain = {"disableNameSuffixHash": True}
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": _namespace(wish),
        "resources": ["base"],
        "configMapGenerator": [{"name": "culm-job", "behavior": "replace", "files": ["job.toml"]}],
        "secretGenerator": [
            *({"name": f"culm-tls-{role}", "files": each, "options": plain} for role, each in files.items()),
            {"name": "culm-redis", "files": ["password=redis-password"], "options": plain},
        ],
        "images": [
            {"name": f"culm/{each}", "newName": f"{registry}/{each}", "newTag": tag}
            for each in ("coordinator", "stage", "ui")
        ],
        "replicas": [{"name": "culm-stage", "count": wish.nodes}],
        "patches": [{"patch": json.dumps(patch)} for patch in _patches(wish, run)],
    }


def _deployment(service: str) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": f"culm-{service}"}}


def _environment(service: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """A patch that adds them to the service's container."""
    listed = [{"name": name, "value": value} for name, value in variables.items()]
    containers = [{"name": service, "env": listed}]
    return {**_deployment(service), "spec": {"template": {"spec": {"containers": containers}}}}


def _words(record: Record) -> list[str]:
    context = record.handles.get("context", "")
    return ["kubectl", *(["--context", context] if context else []), "--namespace", record.handles["namespace"]]


def _kubectl(record: Record, *words: str) -> str:
    return _run([*_words(record), *words])


def _pods(record: Record) -> list[dict[str, Any]]:
    if not record.handles:
        return []
    found: list[dict[str, Any]] = json.loads(_kubectl(record, "get", "pods", "--output", "json"))["items"]
    return found


def _state(pod: dict[str, Any]) -> str:
    """The pod's phase, and what holds it up, in Kubernetes' own words."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses", []):
        if waiting := container.get("state", {}).get("waiting"):
            return str(waiting.get("reason", "waiting"))
    unscheduled = [x for x in status.get("conditions", []) if x.get("type") == "PodScheduled" and x["status"] != "True"]
    return str(unscheduled[0].get("message", "Pending")) if unscheduled else str(status.get("phase", "Unknown"))


def _is_ready(record: Record) -> bool:
    pods = [pod for pod in _pods(record) if pod["metadata"].get("labels", {}).get("app") == "culm-coordinator"]
    conditions = [x for pod in pods for x in pod.get("status", {}).get("conditions", [])]
    return any(x.get("type") == "Ready" and x.get("status") == "True" for x in conditions)


def _in_words(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {state}" for name, state in parts.items()) or "there are no pods yet"


def _lines(record: Record, pod: str) -> Iterator[str]:
    with suppress(JobError):  # a pod that has not started has no log
        yield from _kubectl(record, "logs", pod).splitlines()
