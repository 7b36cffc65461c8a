"""What a coordinator is told when it starts."""

from dataclasses import dataclass

from culm.coordinator.requests import Limits
from culm.coordinator.state import NOTHING_BEFORE, BulksBefore, Settings
from culm.coordinator.tensor_work import Bounds
from culm.pipeline import default_ports
from culm.pipeline.job import Job
from culm.pipeline.patience import Patience


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Read once from flags and ``CULM_*`` variables, then passed as arguments. Times in seconds."""

    job: Job
    listen: str = default_ports.COORDINATOR
    redis_url: str = ""  # empty: nothing outlives this process
    run: str = "culm"
    name: str = "coordinator"
    nodes: int = 0
    spares: int = 1
    settle_seconds: float = 30.0
    new_run: bool = True  # nobody has led it before: no node can hold more than the store knows
    resume: str = ""  # URL of checkpoints to go on from
    allow: frozenset[str] = frozenset()  # parts of its identity in which the run may differ from that checkpoint
    allow_kill: bool = False
    reflection: bool = False
    metrics: str = ""  # HOST:PORT to serve them on; empty: nowhere
    prices: str = ""  # path of the user's price table
    bulks_before: BulksBefore = NOTHING_BEFORE  # of the given trace
    patience_seconds: float | None = None  # in place of the job's
    insecure: bool = False  # listen without TLS where others reach it

    @property
    def patience(self) -> Patience:
        """For everything that may fall silent: nodes, links, the lease."""
        return Patience(self.job.resilience.patience if self.patience_seconds is None else self.patience_seconds)

    @property
    def allowed(self) -> frozenset[str]:
        """Parts in which this run may differ from its own checkpoints; with --resume, --allow is said of that one."""
        return self.allow if not self.resume else frozenset()

    def decisions(self) -> Settings:
        """The part that decisions depend on."""
        job = self.job
        return Settings(
            coordinator=self.name,
            stages=job.pipeline.stages,
            microbatches=job.pipeline.microbatches,
            pipelines=job.pipeline.pipelines,
            by_value=job.pipeline.shape_by == "value",
            measured=job.pipeline.cut == "measured",
            steps=job.job.steps,
            samples_per_step=job.samples_per_step,
            tokens_per_step=job.samples_per_step * (job.data.tokens_per_sample or 0),
            clip_norm=job.train.clip_norm,
            tally=job.tally_form,
            evaluations=job.evaluations,
            best=job.best,
            keeps_best=job.evaluate is not None and job.evaluate.keep_best,
            worse_allowed=job.worse_allowed,
            audit=job.resilience.audit,
            whole_pipelines=job.graph is not None,
            staleness=job.staleness,
            tensor_work=_tensor_work(job),
            nonfinite=job.train.nonfinite,
            same_hardware=job.job.hardware == "same",
            copies=job.resilience.copies_held,
            chooses_copies=job.resilience.copies == "auto",
            bulks_before=self.bulks_before,
            on_accelerators=job.job.device != "cpu",
            hosts_standbys=job.resilience.standby == "host" and job.job.device != "cpu",
            auto=job.resilience.redundancy == "auto",
            nodes=self.nodes,
            most_stages=job.pipeline.most_stages or 0,
            spares=self.spares,
            settle_seconds=self.settle_seconds,
            seed_bytes_per_second=float(job.resilience.seed_bytes_per_second),
            keep_after_done=job.job.keep_after_done,
            limits=Limits(job.job.budget or 0.0, job.job.stops_at),
            checkpoint_url=job.checkpoint.url if job.checkpoint is not None else "",
            checkpoint_every=job.checkpoint.every if job.checkpoint is not None else 0,
            checkpoints_kept=job.checkpoint.keep if job.checkpoint is not None else 3,
            searches=job.checkpoint is not None and not self.new_run,
            patience=self.patience,
        )


def _tensor_work(job: Job) -> Bounds | None:
    if job.graph is None or job.graph.workers != "auto":
        return None
    return Bounds(first=job.graph.first_workers, most=job.graph.most_workers, threads=job.job.threads)
