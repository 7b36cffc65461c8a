"""A real Slurm on this machine: a controller and several slurmd from Debian's packages, each as a machine of its own.

Partitions: ``main`` stays; the machines of ``spot`` are taken by jobs of ``urgent``, which requeue what runs
there after ``GRACE`` seconds.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from culm.local.ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
MACHINES = 5  # node1 stays, the others are spot
GRACE = 15
START_SECONDS = 60.0
CONFIGURATION = """
ClusterName=culm
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=5,batch_sched_delay=1
SlurmdTimeout=20
KillWait=5
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
{nodes}
PartitionName=main Nodes=node1 PriorityTier=10 PreemptMode=OFF
PartitionName=spot Nodes=node[2-{last}] PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace} Default=YES
PartitionName=urgent Nodes=node[2-{last}] PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str:
    """Which of Slurm's programs are not here."""
    return ", ".join(program for program in PROGRAMS if shutil.which(program) is None)


class SlurmCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *words: str) -> str:
        environment = {**os.environ, **self.environment}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=START_SECONDS)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    def start_machine(self, name: str) -> None:
        self.run("slurmd", "-N", name)

    def lose_machine(self, name: str) -> None:
        """As a machine that is gone: its slurmd, and all that ran below it, killed at once."""
        for process in self._of(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def start(self) -> None:
        host = socket.gethostname().partition(".")[0]
        for each in ("state", "spool"):
            (self.folder / each).mkdir()
        machines = "\n".join(
            f"NodeName=node{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 RealMemory=3000"
            for i in range(1, MACHINES + 1)
        )
        text = CONFIGURATION.format(
            host=host, folder=self.folder, port=free_port(), nodes=machines, last=MACHINES, grace=GRACE
        )
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(256))
        places = {"key-file": key.name, "socket": "munge.sock", "pid-file": "munge.pid", "log-file": "munge.log"}
        places["seed-file"] = "munge.seed"
        self.run("munged", "--force", *(f"--{name}={self.folder / file}" for name, file in places.items()))
        self.run("slurmctld")
        for i in range(1, MACHINES + 1):
            self.start_machine(f"node{i}")
        deadline = time.monotonic() + START_SECONDS
        while self.run("sinfo", "--noheader", "--Node", "--format", "%T").split().count("idle") < 2 * MACHINES - 1:
            assert time.monotonic() < deadline, self.run("sinfo")
            time.sleep(0.5)

    def stop(self) -> None:
        for i in range(1, MACHINES + 1):
            self.lose_machine(f"node{i}")
        for name in ("slurmctld", "munge"):
            with suppress(OSError, ValueError, ProcessLookupError):
                os.kill(int((self.folder / f"{name}.pid").read_text()), signal.SIGKILL)

    def _of(self, name: str) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            found.append(psutil.Process(int((self.folder / f"{name}.pid").read_text())))
        # A job's own process is no child of slurmd: it is called after its machine and its job.
        spool = str(self.folder / "spool" / name)
        for process in psutil.process_iter(["name", "environ"]):
            environ = process.info["environ"] or {}
            here = environ.get("SLURM_CONF", "").startswith(str(self.folder))
            if here and environ.get("SLURMD_NODENAME") == name:
                found.append(process)
            elif (process.info["name"] or "").startswith("slurmstepd"):
                with suppress(psutil.Error):
                    if any(spool in file.path for file in process.open_files()) or any(
                        child.environ().get("SLURMD_NODENAME") == name for child in process.children()
                    ):
                        found.append(process)
        return found


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
