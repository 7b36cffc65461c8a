"""What a coordinator is told when it starts."""

from dataclasses import dataclass

from coordinator.state import Settings
from pipeline.job import Job


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Read once from flags and ``CULM_*`` variables, then passed as arguments. Times in seconds."""

    job: Job
    listen: str = "127.0.0.1:7070"
    redis_url: str = ""  # empty: nothing outlives this process
    run: str = "culm"
    name: str = "coordinator"
    nodes: int = 0
    spares: int = 1
    settle_seconds: float = 30.0
    resume: str = ""  # URL of checkpoints to go on from
    allow_kill: bool = False
    reflection: bool = False
    metrics: str = ""  # HOST:PORT to serve them on; empty: nowhere
    prices: str = ""  # path of the user's price table
    heartbeat_seconds: float = 0.5
    heartbeat_timeout: float = 2.0
    link_timeout: float = 5.0
    lease_seconds: float = 3.0
    insecure: bool = False  # listen without TLS where others reach it

    def decisions(self) -> Settings:
        """The part that decisions depend on."""
        job = self.job
        return Settings(
            stages=job.pipeline.stages,
            microbatches=job.pipeline.microbatches,
            steps=job.job.steps,
            samples_per_step=job.samples_per_step,
            tokens_per_step=job.samples_per_step * (job.data.tokens_per_sample or 0),
            clip_norm=job.train.clip_norm,
            redundancy=job.resilience.redundancy != "off",
            auto=job.resilience.redundancy == "auto",
            nodes=self.nodes,
            most_stages=job.pipeline.most_stages or 0,
            spares=self.spares,
            settle_seconds=self.settle_seconds,
            seed_bytes_per_second=float(job.resilience.seed_bytes_per_second),
            checkpoint_url=job.checkpoint.url if job.checkpoint is not None else "",
            heartbeat_timeout=self.heartbeat_timeout,
            reconnect_timeout=self.heartbeat_timeout,
            link_timeout=self.link_timeout,
        )
