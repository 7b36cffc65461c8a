"""What the leader does with the storage of checkpoints: off the event loop, and again until the storage answers."""

# A checkpoint is made in two halves. Nodes write their layers' files, and report each with size and hash. When all of a
# step are on record the coordinator decides to write the manifest, which makes them a checkpoint. That is tried until
# the storage takes it, or a newer step's manifest is due. That the checkpoint is whole comes back as a report like any
# other. Only then may an era begin from it (rule 14).
#
#     command         what comes back
#     WriteManifest   Checkpointed; until then CheckpointFault after each attempt, of which one is on record
#     WriteEvaluation nothing: where it fails the checkpoint does without
#     Retain          nothing: what stays behind goes with the next one, and so does what is still being written
#     Examine         Examined, with THERE, WRONG, AWAY or BUSY: only WRONG is a proof against a checkpoint
#     FindCheckpoints CheckpointsFound, with a reason after each attempt that brought no answer, and then with them
#
# A storage may hang for minutes, and a thread that waits for it cannot be ended. So all I/O is done in threads that
# nothing else needs (``Threads``), and at most one looks at an origin.

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator.edges.background import Background
from culm.coordinator.edges.origins import of_another_job, of_this_job, whole_of
from culm.coordinator.edges.threads import Threads
from culm.pipeline.checkpoints import evaluation_file
from culm.pipeline.checkpoints.manifest import (
    CheckpointCorrupt,
    File,
    Found,
    Manifest,
    OriginUnseen,
    complete,
    problems,
    read_origin,
    retain,
    shows_others,
)
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, job_to_toml
from culm.pipeline.origin import Origin

log = logging.getLogger("culm.coordinator")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  # seconds between two attempts to complete a checkpoint; each doubles the pause
MOST_CALLS = 8  # at once
PATIENCE = 10.0  # seconds that the storage has to show an origin; the nodes that cannot read it wait for the answer


class Archive:
    """Carries commands out that concern checkpoints, and tells what came of them."""

    def __init__(
        self,
        job: Job,
        take: Callable[[reports.Report], None],
        background: Background,
        allowed: frozenset[str] = frozenset(),
        new_run: bool = False,
    ) -> None:
        """``new_run``: whatever checkpoints there are, only those count that are ordered here."""
        self._job = job
        # Of each manifest that was ordered, by its step: its files.
        self._ordered: set[tuple[int, int]] | None = set() if new_run else None
        self._allowed = allowed  # parts of its identity in which a checkpoint that is found may differ
        self._take = take
        # The newest era and step whose manifest was ordered. Invariant: never falls. After a rollback steps come again
        # that are lower than those before it.
        self._newest = (-1, -1)
        # How many writes of a step's manifest are under way. Such a folder has no manifest yet, and is no leftover.
        self._writing: Counter[int] = Counter()
        # The last look at an origin, and what was asked. It may outlast PATIENCE, and no other begins until it is over.
        self._looking: tuple[cmd.Examine, asyncio.Task[tuple[reports.Sight, str]]] | None = None
        self._background = background
        self.threads = Threads(MOST_CALLS)

    def lead(self, first: bool) -> None:
        """``first``: no other leader can have led meanwhile, whose manifests would be this run's as well."""
        if not first:
            self._ordered = None

    def carry_out(self, command: cmd.ForStorage) -> None:
        """Returns at once."""
        if isinstance(command, cmd.WriteManifest):
            self._newest = max(self._newest, (command.era, command.step))
            if self._ordered is not None:
                self._ordered.add((command.step, _files(command.files)))
            self._writing[command.step] += 1
            self._background.begin(self._complete(command)).add_done_callback(lambda _: self._written(command.step))
        elif isinstance(command, cmd.WriteEvaluation):
            self._background.begin(self._write_evaluation(command))
        elif isinstance(command, cmd.Retain):
            self._background.begin(self._retain(command))
        elif isinstance(command, cmd.Examine):
            self._background.begin(self._examine(command))
        else:
            self._background.begin(self._find())

    @property
    def _url(self) -> str:
        assert self._job.checkpoint is not None
        return self._job.checkpoint.url

    async def _complete(self, command: cmd.WriteManifest) -> None:
        """Writes the manifest, as often as it takes; one that a newer has overtaken is given up."""
        manifest = Manifest(
            job=self._job.job.name,
            step=command.step,
            fingerprint=command.fingerprint,
            loss=command.loss,
            files=command.files,
            identity=command.identity,
            job_toml=job_to_toml(self._job),
            best_so_far=command.best_so_far,
        )
        pause = FIRST_PAUSE
        while True:
            try:
                checkpoint = await self.threads.call(complete, self._url, manifest)
            except (OSError, JobError) as error:
                self._take(reports.CheckpointFault("", command.step, in_a_line(error)))
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
                if self._newest > (command.era, command.step):
                    return
                continue
            self._take(reports.Checkpointed(checkpoint))
            return

    def _written(self, step: int) -> None:
        self._writing[step] -= 1

    def _is_own(self, manifest: Manifest) -> bool:
        """Another job's checkpoints at the same URL are another run's, which may have to go back to them."""
        return not of_another_job(manifest, self._job, frozenset())

    async def _write_evaluation(self, command: cmd.WriteEvaluation) -> None:
        found = dict(zip(("loss", *self._job.tally_form.metrics), command.evaluated, strict=True))
        try:
            await self.threads.call(evaluation_file.write, command.folder, found)
        except (OSError, JobError) as error:
            log.warning("could not write beside %s how good its weights are: %s", command.folder, in_a_line(error))

    async def _retain(self, command: cmd.Retain) -> None:
        try:
            kept = command.kept | {step for step, count in self._writing.items() if count}
            await self.threads.call(retain, self._url, command.step, kept, self._is_own)
        except (OSError, JobError) as error:
            log.warning("could not remove old checkpoints; they stay until the next one is whole: %s", in_a_line(error))

    async def _find(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                shown = await self.threads.call(of_this_job, self._job, self._allowed)
            except (OSError, JobError) as error:
                self._take(reports.CheckpointsFound(why=in_a_line(error)))
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
                continue
            own = [found for found in shown if self._is_ordered(found)]
            self._take(reports.CheckpointsFound(tuple(whole_of(found, self._job) for found in own)))
            return

    def _is_ordered(self, found: Found) -> bool:
        ordered, manifest = self._ordered, found.manifest
        return ordered is None or (manifest is not None and (found.step, _files(manifest.files)) in ordered)

    async def _examine(self, asked: cmd.Examine) -> None:
        sight, why = reports.Sight.BUSY, ""
        # A thread that is stuck there stays the only one. A large file may take longer than PATIENCE: whoever asks for
        # it again in the same era gets the answer of the look that was begun: a node reads the file anew before it asks
        # again, which takes its time. Of a manifest an answer that has waited is out of date.
        before = self._looking
        waits = before is not None and before[0] == asked and asked.layer is not None
        if before is None or (before[1].done() and not waits):
            look_at = self.threads.call(look, asked.origin, asked.layer)
            before = self._looking = (asked, self._background.begin(look_at))
        question, looking = before
        if question == asked:
            await asyncio.wait({looking}, timeout=PATIENCE)
            if looking.done():
                sight, why = looking.result()
                if self._looking == before:
                    self._looking = None
            elif asked.layer is None:
                sight, why = reports.Sight.AWAY, f"the storage has not answered for {PATIENCE:g} s"
        self._take(reports.Examined(asked.origin, sight, why))


def _files(files: Mapping[int, tuple[File, ...]]) -> int:
    return hash(frozenset(files.items()))


def look(origin: Origin, layer: int | None = None) -> tuple[reports.Sight, str]:
    """Whether the storage has this very checkpoint, and if not, whether that is for good; with the reason.

    ``layer``: its files are read and compared with the manifest.
    """
    try:
        manifest = read_origin(origin)
        # Twice, since one answer may be an accident.
        wrong = (
            layer is not None and problems(origin.folder, manifest, layer) and problems(origin.folder, manifest, layer)
        )
        if wrong:
            read_origin(origin)  # a mount that went meanwhile looks the same, and is no proof
            return reports.Sight.WRONG, wrong[0]
    except OriginUnseen as unseen:
        try:
            if shows_others(origin):
                return reports.Sight.WRONG, str(unseen)
        except (OSError, JobError) as error:
            return reports.Sight.AWAY, in_a_line(error)
        # A mount point looks like this, and so does another machine's folder: no proof (rule 14).
        return reports.Sight.AWAY, f"{origin.folder.rpartition('/')[0]} has no checkpoint: perhaps it is not mounted"
    except CheckpointCorrupt as corrupt:
        return reports.Sight.WRONG, corrupt.problem
    except (OSError, JobError) as error:
        return reports.Sight.AWAY, in_a_line(error)
    return reports.Sight.THERE, ""


def in_a_line(error: Exception) -> str:
    """A storage's own words may take several lines, or say nothing."""
    return " ".join(str(error).split())[:500] or type(error).__name__
