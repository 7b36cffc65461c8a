"""A pod of ``deploy/kubernetes`` without a cluster: its command, environment, volumes and probes as the manifest says.

What Kubernetes adds of itself is written out here: addresses of services as lines of a hosts file, secrets as files of
the pod's group, an emptyDir as a folder that the group may write.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from culm.local.processes import Child
from tests.machines.container import Mount, contained
from tests.machines.network import Network
from tests.unit.deployed import container, objects, pods

REFERENCE = re.compile(r"\$\((\w+)\)")
Secrets = Mapping[str, Mapping[str, bytes]]


class Pod:
    """``name`` is the pod's and its machine's, ``of`` what made it; ``group`` of files: the manifest's fsGroup."""

    def __init__(self, network: Network, name: str, of: str, folder: Path, secrets: Secrets, hosts: str) -> None:
        self.name = name
        self._network = network
        self._folder = folder / name
        self._folder.mkdir()
        self._secrets = secrets
        self._own = container(of)
        self._spec = pods()[of]["spec"]
        self._labels = pods()[of]["metadata"]["labels"]
        self._security = self._spec["securityContext"]
        (self._folder / "hosts").write_text(hosts)
        self._mounts = [Mount(self._folder / "hosts", "/etc/hosts"), *self._volumes(of)]
        self._process: Child | None = None

    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        assert self._own["securityContext"]["readOnlyRootFilesystem"] is True
        words = [*self._own["command"], *self._own.get("args", [])]
        self._process = Child.start(self._inside(words), self._folder / "log", os.environ)

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    def terminate(self) -> int:
        """As Kubernetes deletes a pod: SIGTERM, and what it ends with within its grace period."""
        assert self._process is not None
        grace = float(self._spec.get("terminationGracePeriodSeconds", 30))
        self._process.terminate()
        assert self._process.wait(grace), f"{self.name} has not ended within {grace:g} s of SIGTERM"
        assert self._process.returncode is not None
        return self._process.returncode

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    def close(self) -> None:
        if self._process is not None:
            self._process.stop(0.0)

    def passes(self, kind: str) -> bool:
        """Whether the probe succeeds now."""
        probe = self._own[kind]
        ports = {port["name"]: port["containerPort"] for port in self._own["ports"]}
        at = self._network.address(self.name)
        if "exec" in probe:
            words = self._inside(probe["exec"]["command"])
        elif "httpGet" in probe:
            asked = probe["httpGet"]
            url = f"http://{at}:{ports[asked['port']]}{asked['path']}"
            words = self._network.within(self.name, "curl", "--silent", "--fail", "--output", "/dev/null", url)
        else:
            port = ports[probe["tcpSocket"]["port"]]
            words = self._network.within(self.name, "bash", "-c", f"exec 3<> /dev/tcp/{at}/{port}")
        return subprocess.run(words, capture_output=True, timeout=60).returncode == 0

    def culm(self, *words: str) -> str:
        """``kubectl exec POD -- culm WORDS``."""
        done = subprocess.run(self._inside(["culm", *words]), capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
        return done.stdout + done.stderr

    def writes(self, path: str) -> bool:
        """Whether the container's user may make a file there."""
        return subprocess.run(self._inside(["touch", path]), capture_output=True, timeout=60).returncode == 0

    def _inside(self, words: list[str]) -> list[str]:
        user = int(self._security["runAsUser"])
        group = int(self._security.get("runAsGroup", self._security["fsGroup"]))
        told = self._environment()
        if self._own["image"].startswith("redis:"):
            told = {"PATH": "/usr/bin:/bin", **told}  # of its image, not the one that the wheel has
        made = contained(words, told, self._mounts, user=user, group=group)
        return self._network.within(self.name, *made)

    def _environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for each in self._own.get("env", []):
            if "value" in each:
                found[each["name"]] = REFERENCE.sub(lambda m: found[m[1]], each["value"])
            else:
                found[each["name"]] = self._from(each["valueFrom"])
        return found

    def _from(self, source: dict[str, Any]) -> str:
        if "secretKeyRef" in source:
            wanted = source["secretKeyRef"]
            return self._secrets[wanted["name"]][wanted["key"]].decode()
        path = source["fieldRef"]["fieldPath"]
        label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
        if label:
            return str(self._labels.get(label[1], ""))
        return {"metadata.name": self.name, "status.podIP": self._network.address(self.name)}[path]

    def _volumes(self, of: str) -> list[Mount]:
        claims = [c["metadata"]["name"] for c in _claims(of)]
        volumes = {v["name"]: v for v in self._spec.get("volumes", [])} | {name: {"emptyDir": {}} for name in claims}
        made = []
        for mount in self._own["volumeMounts"]:
            volume, folder = volumes[mount["name"]], self._folder / mount["name"]
            folder.mkdir()
            if "secret" in volume:
                files, mode = self._secrets[volume["secret"]["secretName"]], volume["secret"]["defaultMode"]
            elif "configMap" in volume:
                files, mode = self._secrets[volume["configMap"]["name"]], 0o644
            else:
                assert "emptyDir" in volume
                files, mode = {}, 0o644
            for name, content in files.items():
                (folder / name).write_bytes(content)
                (folder / name).chmod(mode)
                shutil.chown(folder / name, group=int(self._security["fsGroup"]))
            shutil.chown(folder, group=int(self._security["fsGroup"]))
            folder.chmod(0o2777 if "emptyDir" in volume else 0o2755)
            made.append(Mount(folder, mount["mountPath"], writable="emptyDir" in volume))
        return made


def _claims(of: str) -> list[dict[str, Any]]:
    return [c for o in objects("StatefulSet") if o["metadata"]["name"] == of for c in o["spec"]["volumeClaimTemplates"]]


def until(what: str, condition: Callable[[], bool], pods_of: list[Pod], patience: float = 180.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        ended = [pod.name for pod in pods_of if pod.has_ended]
        if ended or time.monotonic() > deadline:
            logs = "\n".join(f"--- {pod.name}\n{pod.log()[-2000:]}" for pod in pods_of)
            raise AssertionError(f"waiting for {what}: {ended or f'not within {patience:g} s'}\n{logs}")
        time.sleep(0.2)
