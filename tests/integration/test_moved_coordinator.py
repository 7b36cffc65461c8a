"""The coordinator of a run on Slurm or Ray, started again where its port is taken: its nodes read the new address."""

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from culm.engines.engine import Wish
from culm.engines.services import keep_coordinator, make_kit, read_address
from culm.pipeline import private

DIGITS = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"
SECONDS = 60.0


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CULM_TLS_DIR", "")  # so that it is put back
    folder = private.make_folder(tmp_path / "kit")
    shutil.copy(DIGITS, folder / "job.toml")
    make_kit(folder, Wish(name="gpt", job="gpt.toml", job_folder=DIGITS.parent, nodes=3, options={}))
    return folder


@pytest.fixture
def other() -> Iterator[socket.socket]:
    with closing(socket.socket()) as taken:
        yield taken


def port_of(kit: Path) -> int:
    return int(read_address(kit).rpartition(":")[2])


def test_on_another_machine(kit: Path, other: socket.socket) -> None:
    """It tried the port that it had before five times, and the run was over."""
    other.bind(("0.0.0.0", 0))
    other.listen()
    taken = other.getsockname()[1]
    private.write_text(kit / "address", f"the-machine-before:{taken}")
    stop = threading.Event()
    stop.set()
    keep_coordinator(kit, stop=stop)
    assert port_of(kit) not in (0, taken)


def test_on_the_same_machine(kit: Path, other: socket.socket) -> None:
    ports = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            ports.append(port_of(kit))
            if len(ports) == 1:
                (lost,) = [x for x in psutil.Process().children() if "coordinator" in x.cmdline()]
                lost.kill()
                psutil.wait_procs([lost], SECONDS)
                other.bind(("0.0.0.0", ports[0]))
                other.listen()
            return len(set(ports)) > 1

    keep_coordinator(kit, stop=Stop())
    assert ports[-1] != ports[0]
