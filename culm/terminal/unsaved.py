"""What a lost node would cost a job that has no [checkpoint], said before it starts."""

from culm.pipeline.job import Job

NO_CHECKPOINT = (
    "the job has no [checkpoint] section: if all nodes that hold a stage go at once, every step so far is lost, and "
    'the run begins again at step 0; add the section, with every = N and url = "s3://..." or a folder that all share'
)
NOTHING_STALE_SAVED = (
    "the job has graph.staleness = {staleness} and no [checkpoint] section: if one graph server goes, every epoch so "
    "far is lost, and the run begins again at epoch 0; add the section, with every = N, a multiple of graph.refresh"
)

KEPT_NOWHERE = "nothing: the job has no [checkpoint] section, so culm down ends the run with all of its steps"


def unsaved(job: Job, here: bool) -> str:
    """Nothing where the job has a [checkpoint]. ``here``: what runs on this machine alone is a trial, or loses all
    copies with the machine; elsewhere machines are taken in bulk.
    """
    if job.checkpoint is not None:
        return ""
    if job.graph is not None and job.graph.staleness:
        return NOTHING_STALE_SAVED.format(staleness=job.graph.staleness)
    return "" if here else NO_CHECKPOINT
