"""From which checkpoint a run goes on: what its job says otherwise than the one that wrote it is named.

A store that knows nothing is no proof that nobody trained: it may have lost its memory, and every node with it. So
whole checkpoints of this very job at its own URL count before step 0 (rule 14), and nodes that hold state count before
those (rule 15). ``--new-run`` says that nobody has led the run before; then it begins anew, and writes over them.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from culm.coordinator.agreement import Agreement
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.state import State
from culm.pipeline.checkpoints.manifest import Found, Manifest, find_checkpoints
from culm.pipeline.errors import JobError
from culm.pipeline.identity import Identity, difference, refuse_changes
from culm.pipeline.job import Job, parse_job
from culm.pipeline.text import shown_url, without_secrets

log = logging.getLogger("culm.coordinator")

# Who counts when a coordinator begins, the first that has something to say:
#
#     the store's state        it is the run's own (``persistence``); only its job is compared here
#     nodes that hold state    they have the patience to attach; nothing is decided before (``takeover``)
#     the newer of these two:
#       --resume               a whole checkpoint that the user named, of the same bits but for what --allow names
#       what was left behind   whole checkpoints of this very job at its own [checkpoint] url
#     step 0                   where none of these has anything
#
# --new-run says that nobody led this run before: then nothing is waited for or looked up but the store and --resume.
#
# The job file is compared here, and what differs is named by its key. Code, files, versions, hardware and layers only
# nodes can tell: those are compared as nodes join (rule 23).


def resumable(manifest: Manifest, url: str, settings: CoordinatorSettings) -> Agreement:
    """What the nodes of the new run have to agree with. Raises JobError for a job that would give other bits.

    What the job file cannot tell (code, files, versions, hardware, the layers) is compared when nodes join.
    """
    where = f"--resume {without_secrets(url)}"
    job = settings.job
    if manifest.step >= job.job.steps:
        what = f"the checkpoint is of step {manifest.step}, and the job has {job.job.steps} steps"
        raise JobError(what, where, "set job.steps to more, or resume from an earlier checkpoint")
    if not manifest.job_toml:
        # Nothing tells whether it was this job. The user named the checkpoint, so the user's word counts.
        log.warning("%s does not say which job wrote it: only the shapes of its layers are compared", shown_url(url))
        return Agreement()
    try:
        then = parse_job(manifest.job_toml, "the checkpoint's job")
    except JobError as error:
        raise JobError(f"its job cannot be read: {error}", where, "resume with the version that wrote it") from error
    refuse_changes(then, job, settings.allow, where)
    return Agreement(checkpoint=Identity(manifest.identity.parts, manifest.identity.outlines).without(settings.allow))


def refuse_other_job(written: str, settings: CoordinatorSettings) -> None:
    """Raises JobError where the job is not the one with which the run began. ``written``: that one, as TOML.

    Also where no bit depends on the key: each node works by the job that it began with, and attends no coordinator of
    another one. Nothing would be committed, and after their ``coordinator_timeout`` all of them would end.
    """
    where = f"run {settings.run}"
    try:
        then = parse_job(written, "the run's job")
    except JobError as error:
        # Such as one of another version of Culm, with a setting that this one does not know: no reason to end the run.
        log.warning("could not read the job with which %s began, so this job is not compared: %s", where, error)
        return
    mend = "set it back, or begin another run with --run NAME"
    refuse_changes(then, settings.job, (), where, "the run", mend)
    if differs := difference(then, settings.job):
        raise JobError(f"{differs} in the run's job", where, mend)


def left_behind(settings: CoordinatorSettings) -> list[Found]:
    """The whole checkpoints of this very job at its own URL, oldest first.

    Only their manifests are read: the nodes compare every file. Raises OSError where the storage does not answer.
    """
    job = settings.job
    if job.checkpoint is None:
        return []
    url = job.checkpoint.url
    allowed = settings.allow if not settings.resume else frozenset()  # else it is said of the one that is resumed
    ours: list[Found] = []
    for found in find_checkpoints(url):
        if found.manifest is None or found.step > job.job.steps:
            continue
        why = of_another_job(found.manifest, job, allowed)
        # The newest decides what the run is: an older one of other code would give a later era other bits.
        if not why and ours and _identity(ours[0]).parts != _identity(found).parts:
            why = f"its code, files, versions or hardware differ from those of the checkpoint of step {ours[0].step}"
        if why:
            what = "the checkpoint %s is not this run's, so it is left out and will be written over: %s"
            log.warning(what, shown_url(found.url), why)
        else:
            ours.append(found)
    return ours[::-1]


def going_on(state: State, ours: Sequence[Found], allow: frozenset[str]) -> State:
    """The state of a run of which only checkpoints are left; one that is resumed from a newer one stays as it is."""
    if not ours or ours[-1].step <= state.committed:
        return state
    newest = ours[-1]
    log.warning(
        "Redis knows nothing of this run, and %s is a whole checkpoint of this job. Unless nodes know more the run goes"
        " on from step %d. To begin anew and write over it, start with --new-run. To keep it, name another url",
        shown_url(newest.url),
        newest.step,
    )
    return replace(
        state,
        committed=newest.step,
        origin=newest.origin,
        checkpoints=tuple(found.origin for found in ours),
        agreement=Agreement(checkpoint=_identity(newest).without(allow)),
    )


def _identity(found: Found) -> Identity:
    return found.manifest.identity if found.manifest is not None else Identity()


def of_another_job(manifest: Manifest, job: Job, allowed: frozenset[str]) -> str:
    """How the checkpoint's job differs from this one, or nothing."""
    if manifest.job != job.job.name:
        return f"its job is {manifest.job}"
    if not manifest.job_toml:
        return "it does not say which job wrote it"
    try:
        refuse_changes(parse_job(manifest.job_toml, "the checkpoint's job"), job, allowed, "")
    except JobError as error:
        return error.what
    return ""
