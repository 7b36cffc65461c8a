"""From which checkpoint a run goes on: what its job says otherwise than the one that wrote it is named.

A store that knows nothing is no proof that nobody trained: it may have lost its memory, and every node with it. So
whole checkpoints of this very job at its own URL count before step 0 (rule 14), and nodes that hold state count before
those (rule 15). ``--new-run`` says that nobody has led the run before; then it begins anew, and writes over them.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from culm.coordinator import rolling_back, stopping_early
from culm.coordinator.agreement import Agreement
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.reports import Whole
from culm.coordinator.state import State
from culm.pipeline.checkpoints import storage
from culm.pipeline.checkpoints.manifest import (
    Found,
    Manifest,
    checkpoints_at,
    completed_at,
    find_checkpoints,
    folder_of,
    found_in,
    step_of,
)
from culm.pipeline.early_stop import NONE_SO_FAR, EarlyStop, early_stop
from culm.pipeline.errors import JobError
from culm.pipeline.identity import Identity, difference, refuse_changes, refuse_other_ages, same_values
from culm.pipeline.identity_parts import with_what_follows
from culm.pipeline.job import Job, parse_job
from culm.pipeline.origin import Origin
from culm.pipeline.text import shown_url, without_secrets

log = logging.getLogger("culm.coordinator")

MOST_NAMED = 8  # checkpoints, in the error about one that is not there

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


def resumable(found: Found, manifest: Manifest, settings: CoordinatorSettings) -> Agreement:
    """What the nodes of the new run have to agree with. Raises JobError for a job that would give other bits.

    Also for a run that would end at once. What the job file cannot tell (code, files, versions, hardware, the layers)
    is compared when nodes join. ``manifest``: the one that was found.
    """
    url, sha256, job = found.url, found.sha256, settings.job
    where = f"--resume {without_secrets(url)}"
    if manifest.step >= job.job.steps:
        what = f"the checkpoint is of step {manifest.step}, and the job has {job.job.steps} steps"
        mend = "set job.steps to more, or resume from an earlier one by its own folder, URL/step-..."
        raise JobError(what, where, mend)
    if stop := _ended_with(found, job):
        needed = stop.best_so_far.worse_in_a_row + 2
        mend = f"raise evaluate.patience to {needed} or more, or resume from an earlier one by its own folder"
        raise JobError(f"the run has {stopping_early.in_words(settings.decisions(), stop)}", where, mend)
    if not manifest.job_toml:
        # Nothing tells whether it was this job. The user named the checkpoint, so the user's word counts.
        log.warning("%s does not say which job wrote it: only the shapes of its layers are compared", shown_url(url))
        return Agreement(lineage=sha256)
    try:
        then = parse_job(manifest.job_toml, "the checkpoint's job")
    except JobError as error:
        raise JobError(f"its job cannot be read: {error}", where, "resume with the version that wrote it") from error
    refuse_changes(then, job, settings.allow, where)
    refuse_other_ages(then, job, manifest.step, settings.allow, where)
    let = with_what_follows(settings.allow)
    lineage = sha256 if settings.allow else manifest.identity.lineage
    return Agreement(checkpoint=manifest.identity.without(let), lineage=lineage)


def _ended_with(found: Found, job: Job) -> EarlyStop | None:
    """Whether the run ends with this checkpoint: how good its weights are is known, and they are one too many."""
    evaluated = numbers_of(found, job)
    if not job.evaluations.in_step(found.step, job.job.steps):
        return None
    before = found.origin.best_so_far
    return early_stop(before, job.best, job.worse_allowed, found.step, evaluated) if before is not None else None


def to_resume(url: str) -> list[Found]:
    """The newest whole checkpoint there, and those before it that the same run may have written; oldest first.

    ``url``: of a folder of checkpoints, or of one of them. Only manifests are read: the nodes compare every file, and
    the run goes on from the one before where one is wrong. Raises OSError where the storage does not answer, and
    JobError where it is not clear which one is meant.
    """
    there = checkpoints_at(url)
    whole = [found for found in there if found.manifest is not None]
    refuse_mixed(whole, f"--resume {shown_url(url)}", lambda found: f"--resume {shown_url(found.url)}")
    for found in there[: there.index(whole[0])] if whole else there:
        log.warning("the checkpoint of step %d is passed over: %s", found.step, found.problem)
    return [found for found in whole if _is_of_one_run(found, whole[0])][::-1]


def with_best_before(whole: list[Found], job: Job) -> list[Found]:
    """And the best checkpoint before the newest of these, which are oldest first, if the job keeps it.

    It may be missing: the user named one step, or it was written when the job had another number of steps. Where it is
    not on record the run's first own checkpoint deletes it. Raises OSError where the storage does not answer.
    """
    known = whole[-1].origin.best_so_far if whole else None
    keeps = job.evaluate is not None and job.evaluate.keep_best
    if not keeps or known is None or known.step in (0, *(found.step for found in whole)):
        return whole
    beside = found_in(folder_of(whole[-1].url.rpartition("/")[0], known.step), known.step)
    return sorted([beside, *whole], key=lambda found: found.step) if _is_best(beside, whole[-1], job) else whole


def _is_best(found: Found, newest: Found, job: Job) -> bool:
    """Whether it is what the newest one calls the best before it, and not another run's of that step."""
    known, numbers = newest.origin.best_so_far, numbers_of(found, job)
    return bool(numbers) and known is not None and (found.step, numbers[job.best.place]) == (known.step, known.number)


def of_its_run(whole: Sequence[Found], job: Job) -> list[Found]:
    """Of whole ones, newest first: what the newest one's run wrote, and the best before it. ``job``: the newest one's.

    That run may have had another number of steps meanwhile, or other ``evaluate`` settings.
    """
    return [
        found
        for found in whole
        if found.manifest is not None
        and (
            (identity_of(found).agrees(identity_of(whole[0])) and not of_another_job(found.manifest, job, frozenset()))
            or _is_best(found, whole[0], job)
        )
    ]


def refuse_mixed(whole: Sequence[Found], where: str, named: Callable[[Found], str]) -> None:
    """Raises JobError where the newest of these, which are newest first, was not written last, but another run's was.

    A run that began anew, or went back, leaves the newer steps of the run before until it comes to them. ``named``: how
    to say which one is meant.
    """
    if not whole:
        return
    others = [found for found in whole if not _is_of_one_run(found, whole[0])]
    if not others:  # nearly always: then no time is asked for
        return
    written = {found.url: completed_at(found.url) for found in (whole[0], *others)}
    newest = written[whole[0].url]
    later = [found for found in others if newest is not None and (written[found.url] or newest) > newest]
    if later:
        what = f"the checkpoint of step {later[0].step} was written after that of step {whole[0].step}, by another run"
        mend = f"say which one is meant: {named(later[0])} or {named(whole[0])}"
        raise JobError(what, where, mend)


def newer_in_words(job: Job, resume: str) -> str:
    """What becomes of the checkpoints at the job's own URL that are newer than what the run begins with.

    Empty where there are none, or the run resumes the newest. Raises OSError where the storage does not answer.
    """
    step = step_of(resume) if resume else 0
    if job.checkpoint is None or step is None:
        return ""
    if resume:
        own, folder = storage.open_fs(job.checkpoint.url)[1], storage.open_fs(resume)[1]
        if folder.rstrip("/").rpartition("/")[0] != own.rstrip("/"):
            return ""
    newer = sorted(found.step for found in find_checkpoints(job.checkpoint.url) if found.step > step)
    if not newer:
        return ""
    which = f"step {newer[0]} is" if len(newer) == 1 else f"steps {', '.join(map(str, newer))} are"
    written = "each stays until this run comes to its step, which writes over it"
    than = f"newer than step {step}, from which the run goes on" if resume else "of a run before"
    return f"at {shown_url(job.checkpoint.url)} {which} {than}: {written}"


def refuse_nothing(url: str, whole: Sequence[Found]) -> None:
    """Raises JobError where there is no whole checkpoint to go on from, or not even a folder."""
    if not whole:
        what = "there is no whole checkpoint" if storage.names(url) else "nothing is there"
        what += f" ({Path(url).absolute()})" if "://" not in url and not Path(url).is_absolute() else ""
        mend = _beside(url) or "name a folder that culm checkpoint ls finds something in"
        raise JobError(what, f"--resume {shown_url(url)}", mend)


def _beside(url: str) -> str:
    """Which steps may be named in place of one that is not there, the newest first."""
    parent, _, last = url.rstrip("/").rpartition("/")
    whole = [found for found in find_checkpoints(parent) if found.manifest is not None] if last[:5] == "step-" else []
    if not whole:
        return ""
    steps = ", ".join(str(found.step) for found in whole[:MOST_NAMED]) + (", ..." if len(whole) > MOST_NAMED else "")
    return f"whole ones are of step {steps}: name one, as in {shown_url(whole[0].url)}"


def _is_of_one_run(one: Found, other: Found) -> bool:
    a, b = one.manifest, other.manifest
    assert a is not None
    assert b is not None
    alike = (a.job, a.job_toml, a.identity.outlines) == (b.job, b.job_toml, b.identity.outlines)
    # A part may be known only since a later node told it, as samples are.
    return alike and a.identity.agrees(b.identity)


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
        if differs.startswith(("job.budget", "job.stop_at")):
            mend = "set it back; culm resume --budget or --stop-at changes it while the run goes on"
        raise JobError(f"{differs} in the run's job", where, mend)


def left_behind(settings: CoordinatorSettings) -> list[Found]:
    """The whole checkpoints of this very job and of one identity at its own URL, oldest first.

    Only their manifests are read: the nodes compare every file. Raises OSError where the storage does not answer.
    """
    found = of_this_job(settings.job, settings.allowed)
    if not found:
        return []
    # The one that was written last decides what the run is: one of other code would give a later era other bits.
    last = _written_last(found)
    ours = [each for each in found if identity_of(each).agrees(identity_of(last))]
    for other in [each for each in found if each not in ours]:
        why = f"its code, files, versions or hardware differ from those of the checkpoint of step {last.step}"
        _leave_out(other, why)
    return ours


def of_this_job(job: Job, allowed: frozenset[str]) -> list[Found]:
    """The whole checkpoints of this very job at its own URL, oldest first, as far as the job file tells.

    ``allowed``: parts of the identity in which they may differ. Raises OSError where the storage does not answer.
    """
    if job.checkpoint is None:
        return []
    ours = []
    for found in find_checkpoints(job.checkpoint.url):
        if found.manifest is None or found.step > job.job.steps:
            continue
        why = of_another_job(found.manifest, job, allowed)
        if why:
            _leave_out(found, why)
        else:
            ours.append(found)
    return ours[::-1]


def _written_last(found: Sequence[Found]) -> Found:
    """By the time of its manifest; by its step where all are alike, or the storage keeps no times."""
    if all(identity_of(each).agrees(identity_of(found[0])) for each in found):
        return found[-1]
    times = {each.url: completed_at(each.url) for each in found}
    return max(found, key=lambda each: (times[each.url] or datetime.min.replace(tzinfo=UTC), each.step))


def _leave_out(found: Found, why: str) -> None:
    what = "the checkpoint %s is not this run's, so it is left out and will be written over: %s"
    log.warning(what, shown_url(found.url), why)


def going_on(state: State, ours: Sequence[Found], job: Job, allow: frozenset[str]) -> State:
    """The state of a run of which only checkpoints are left; one that is resumed from a newer one stays as it is."""
    beyond = rolling_back.going_on(state, [whole_of(found, job) for found in ours], with_what_follows(allow))
    if beyond is not state:
        log.warning(
            "Redis knows nothing of this run, and %s is a whole checkpoint of this job. Unless nodes know more, the run"
            " goes on from step %d%s. To begin anew and write over it, start with --new-run; to keep it, name another"
            " url",
            shown_url(ours[-1].url),
            ours[-1].step,
            f", and not from step {state.committed} of --resume" if state.resumed else "",
        )
    return beyond


def whole_of(found: Found, job: Job) -> Whole:
    return Whole(origin_of(found, job), identity_of(found), numbers_of(found, job))


def origin_of(found: Found, job: Job) -> Origin:
    """The checkpoint as an era's origin. What was best before it counts where that was evaluated as this job does."""
    origin = found.origin
    if job.evaluate is None or (origin.best_so_far is not None and _evaluates_alike(found, job)):
        return origin
    if not job.worse_allowed:
        return replace(origin, best_so_far=None)
    why = "does not tell which evaluation before it was the best, or of another kind of evaluation"
    log.warning("the checkpoint %s %s: evaluate.patience counts from here on", shown_url(found.url), why)
    return replace(origin, best_so_far=NONE_SO_FAR)


def _evaluates_alike(found: Found, job: Job) -> bool:
    """Whether the checkpoint's numbers may be compared with those of this job: they are of the same on the same."""
    manifest = found.manifest
    if manifest is None or not manifest.job_toml:
        return False
    try:
        then = parse_job(manifest.job_toml, "the checkpoint's job")
    except JobError:  # of another version of Culm
        return False
    return same_values(_what_is_evaluated(then), _what_is_evaluated(job))


def _what_is_evaluated(job: Job) -> tuple[object, ...]:
    asked = job.evaluate
    if asked is None:
        return ()
    metric = asked.metrics.get(asked.best, job.train.loss)
    size = asked.microbatch or job.data.microbatch
    return asked.dataset, asked.args, asked.samples, size, job.data.collate, metric, job.best.most


def numbers_of(found: Found, job: Job) -> tuple[float, ...]:
    """What was evaluated of a checkpoint: the loss, then each metric.

    Nothing where one of them was not, or where the numbers may not be compared with this job's.
    """
    names = ("loss", *job.tally_form.metrics)
    if not all(name in found.evaluated for name in names) or not _evaluates_alike(found, job):
        return ()
    return tuple(found.evaluated[name] for name in names)


def identity_of(found: Found) -> Identity:
    return found.manifest.identity if found.manifest is not None else Identity()


def of_another_job(manifest: Manifest, job: Job, allowed: frozenset[str]) -> str:
    """How the checkpoint's job differs from this one, or nothing."""
    if manifest.job != job.job.name:
        return f"its job is {manifest.job}"
    if not manifest.job_toml:
        return "it does not say which job wrote it"
    try:
        then = parse_job(manifest.job_toml, "the checkpoint's job")
        refuse_changes(then, job, allowed, "")
        refuse_other_ages(then, job, manifest.step, allowed, "")
    except JobError as error:
        return error.what
    if job.worse_allowed and not _stops_no_later(then, job):
        return "its run had more evaluate.patience, or evaluated otherwise: it may have gone on where this one ends"
    return ""


def _stops_no_later(then: Job, job: Job) -> bool:
    """Whether this job comes to every step to which the other one came: it had no more patience."""
    assert job.evaluate is not None
    alike = same_values(_what_is_evaluated(then), _what_is_evaluated(job))
    as_often = then.evaluate is not None and then.evaluate.every == job.evaluate.every
    return alike and as_often and 0 < then.worse_allowed <= job.worse_allowed
