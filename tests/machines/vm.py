"""A virtual machine of ``deploy/vm``: what its cloud-init file writes and runs, and its unit under a small systemd."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from culm.local.processes import Child
from culm.local.redis_binary import find_redis_server
from tests.machines.cloud import ADDRESS
from tests.machines.container import ROOT, Mount, contained
from tests.machines.network import Network

PAGE = ROOT / "deploy" / "vm"
FOLDERS = ("/etc/culm", "/etc/redis", "/etc/systemd/system", "/usr/local/bin", "/var/lib/redis")
BY_SIGNAL = 128  # what docker's exit code is above the number of the signal


def user_data(role: str, certificates: Path, job: str = "", coordinator: str = "") -> dict[str, Any]:
    """The role's cloud-init file after the page's step 2: images, certificates, the job, the coordinator's address."""
    text = (PAGE / f"cloud-init-{role}.yaml").read_text().replace("=REGISTRY/", "=registry.test/")
    for name in ("ca.crt", "tls.crt", "tls.key"):  # in this order in the file, as its test says
        pasted = b64encode((certificates / role / name).read_bytes()).decode()
        text = text.replace("PASTE IT HERE", pasted, 1)
    found: dict[str, Any] = yaml.safe_load(text.replace("COORDINATOR:7070", f"{coordinator}:7070"))
    for file in found["write_files"]:
        if job and file["path"] == "/etc/culm/job.toml":
            file["content"] = job
    return found


def settings(text: str) -> dict[str, str]:
    """An environment file, as systemd and docker read it."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


class Machine:
    """``codes``: where the code of an image lies, by its tag. ``given``: what the image sets beside its own."""

    def __init__(
        self, network: Network, name: str, folder: Path, codes: Mapping[str, Path], given: Mapping[str, str], held: Path
    ) -> None:
        self.name = name
        self.folder = folder / name
        self._network = network
        self._codes = codes
        self._given = given
        self._held = held
        self._processes: dict[str, Child] = {}
        self._unit: dict[str, str] = {}
        self._stopped = True
        self._again_at = 0.0
        for each in FOLDERS:
            self.path(each).mkdir(parents=True)

    def path(self, absolute: str) -> Path:
        return self.folder / absolute.lstrip("/")

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # ---- what happens once --------------------------------------------------------------------------------------

    def in_cloud(self, cloud: str) -> None:
        """There is a metadata service from now on."""
        self._run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"])
        self._start("cloud", [sys.executable, "-m", "tests.machines.cloud", cloud])

    def has_cloud(self) -> bool:
        return "listening" in self.log("cloud")

    def notice(self) -> None:
        subprocess.run(["kill", "-USR1", str(self._processes["cloud"].pid)], check=True)

    def forget_the_cloud(self) -> None:
        """What takes the place of a machine that was told to go has had no notice."""
        self._processes.pop("cloud").stop(0.0)

    def cloud_init(self, config: dict[str, Any]) -> None:
        """Writes its files and runs its commands, but for systemctl's, which ``start`` and ``restart_redis`` are."""
        for file in config["write_files"]:
            path = self.path(file["path"])
            path.parent.mkdir(parents=True, exist_ok=True)
            content = b64decode(file["content"]) if file.get("encoding") == "b64" else file["content"].encode()
            path.write_bytes(content)
            path.chmod(int(file.get("permissions", "0644"), 8))
        self.path("/etc/redis/redis.conf").write_text("# as Debian ships it\nbind * -::*\nport 6379\nappendonly no\n")
        for command in config["runcmd"]:
            if not command.startswith("systemctl "):
                self._run(self._as_root(["sh", "-euc", command]))
        (unit,) = (f["path"] for f in config["write_files"] if f["path"].endswith(".service"))
        self._unit = dict(re.findall(r"^(\w+)=(.*)$", self.path(unit).read_text(), re.MULTILINE))

    def _as_root(self, words: list[str]) -> list[str]:
        """``words`` as a shell of the machine runs them."""
        mounts = [Mount(self.path(each), each, writable=True) for each in FOLDERS]
        return contained(words, {}, mounts, user=0, group=0)

    def _run(self, words: list[str]) -> None:
        subprocess.run(self._network.within(self.name, *words), check=True, timeout=60)

    def _start(self, name: str, words: list[str]) -> Child:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        child = Child.start(self._network.within(self.name, *words), self.folder / f"{name}.log", environment)
        self._processes[name] = child
        return child

    # ---- its services -------------------------------------------------------------------------------------------

    def restart_redis(self) -> None:
        """``systemctl restart redis-server``."""
        if (running := self._processes.get("redis")) is not None:
            running.terminate()
            assert running.wait(60.0)
        configuration = self.path("/etc/redis/redis.conf")
        folder = self.path("/var/lib/redis")
        self._start("redis", [str(find_redis_server()), str(configuration), "--dir", str(folder)])

    def start(self) -> None:
        """``systemctl start``: the very ExecStart, of which docker's part is the container."""
        self._stopped = False
        environment = settings(self.path(self._unit["EnvironmentFile"]).read_text())
        words = [word.replace("${IMAGE}", environment["IMAGE"]) for word in shlex.split(self._unit["ExecStart"])]
        self._start("service", self._docker(words))

    def stop(self) -> None:
        """``systemctl stop``: SIGTERM, and after TimeoutStopSec the end."""
        self._stopped = True
        running = self._processes["service"]
        running.terminate()
        patience = float(self._unit.get("TimeoutStopSec", "90"))
        assert running.wait(patience), f"{self.name} has not ended within {patience:g} s of SIGTERM"

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        self._processes["service"].kill()

    def upgrade(self, tag: str) -> None:
        """Names another image, and restarts the service."""
        file = self.path(self._unit["EnvironmentFile"])
        file.write_text(re.sub(r"^(IMAGE=.*):.*$", rf"\1:{tag}", file.read_text(), flags=re.MULTILINE))
        self.restart()

    def tend(self) -> None:
        """What systemd does about a service that has ended."""
        running = self._processes.get("service")
        if self._stopped or running is None or running.returncode is None:
            return
        code = running.returncode if running.returncode >= 0 else BY_SIGNAL - running.returncode
        again = {"always": True, "on-failure": code != 0}[self._unit["Restart"]]
        if not again or str(code) in self._unit.get("RestartPreventExitStatus", "").split():
            self._stopped = True
        elif not self._again_at:
            self._again_at = time.monotonic() + float(self._unit["RestartSec"])
        elif time.monotonic() >= self._again_at:
            self._again_at = 0.0
            self.start()

    def is_down(self) -> bool:
        """Whether its service has ended and stays so."""
        return self._stopped

    @property
    def broken(self) -> list[str]:
        """What has ended that nobody starts again."""
        return [n for n, child in self._processes.items() if n != "service" and child.returncode is not None]

    def _docker(self, words: list[str]) -> list[str]:
        """``docker run``, as far as the units use it; an option that is new to this test is an error."""
        assert words[:2] == ["/usr/bin/docker", "run"]
        parser = argparse.ArgumentParser(exit_on_error=False)
        for switch in ("--rm", "--init"):
            parser.add_argument(switch, action="store_true", required=True)
        for option in ("--name", "--network", "--stop-timeout", "--env-file", "--entrypoint"):
            parser.add_argument(option)
        for option in ("--log-opt", "--volume"):
            parser.add_argument(option, action="append", default=[])
        parser.add_argument("image")
        parser.add_argument("words", nargs=argparse.REMAINDER)
        told = parser.parse_args(words[2:])
        assert told.network == "host"
        mounts = [Mount(self._held, "/hold")]
        for volume in told.volume:
            source, target, mode = volume.split(":")
            mounts.append(Mount(self.path(source), target, writable=mode != "ro"))
        environment = {**self._given, **settings(self.path(told.env_file).read_text())}
        code = self._codes[told.image.rpartition(":")[2]]
        return contained([told.entrypoint, *told.words], environment, mounts, code=code, read_only=False)

    def close(self) -> None:
        for child in self._processes.values():
            child.stop(0.0)


def raised_version(folder: Path, version: str) -> Path:
    """A second checkout, of the code as it is here, that says another version of itself."""
    folder.mkdir()
    for each in ROOT.iterdir():
        if each.name not in ("culm", ".git", ".venv"):
            (folder / each.name).symlink_to(each)
    shutil.copytree(ROOT / "culm", folder / "culm", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    own = folder / "culm" / "__init__.py"
    text = re.sub(r'^__version__ = ".*"', f'__version__ = "{version}"', own.read_text(), flags=re.MULTILINE)
    own.write_text(text)
    return folder
