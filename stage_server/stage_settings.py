"""What a stage server is told when it starts."""

from dataclasses import dataclass, field

from culm.pipeline import default_ports
from culm.pipeline.machine import Machine
from culm.pipeline.patience import USUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """Read once from flags and ``CULM_*`` variables, then passed as arguments. Times in seconds."""

    coordinator: str = default_ports.COORDINATOR
    listen: str = "127.0.0.1:0"
    advertise: str = ""  # HOST or HOST:PORT where other nodes reach it, if that is not where it listens
    insecure: bool = False  # listen without TLS where others reach it
    name: str = ""  # empty: made from the host's name and the process id
    machine: Machine = field(default_factory=Machine)  # what it runs on, as far as it is known
    run: str = ""  # empty: any
    kill_at: tuple[str, ...] = ()  # STEP:INSTRUCTION, to die there: for demos and tests
    connect_timeout: float = 30.0  # for the first coordinator
    coordinator_timeout: float = 3600.0  # for the next one, once the one that was attended has gone
    patience: float = USUAL  # until the coordinator has told the run's
    reflection: bool = False
    metrics: str = ""  # HOST:PORT to serve them on; empty: nowhere
    notices: str = "auto"  # where preemption notices come from: see culm.stage_server.notices.make_sources
    memory_bytes: int = 0  # that it may use; 0: what its machine, its container or its accelerator has
    spill_above: int = 0  # bytes of kept tensors in memory before others go to disk; 0: what layers leave of memory
    spill_folder: str = ""  # empty: the system's for temporary files
    drain_seconds: float = 25.0  # how long SIGTERM leaves for handing over; Kubernetes kills after 30
