"""A simulated storage of checkpoints: folders, files and manifests, with the faults that a real one has.

It answers late, is away for a while, is full, loses its mount (then everything is absent), is not seen by one node, is
read as other bytes by one node, and has files that are torn. What is written and read is bytes, checked by the same
functions as real files.
"""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.pipeline.bookmark import Bookmark
from culm.pipeline.checkpoints import bookmark_file
from culm.pipeline.checkpoints.manifest import (
    MANIFEST,
    CheckpointCorrupt,
    File,
    FileDamaged,
    Manifest,
    OriginUnseen,
    check_file,
    folder_of,
    manifest_from_json,
    manifest_to_json,
    named,
    step_of,
)
from culm.pipeline.identity import Identity
from culm.pipeline.origin import Origin
from culm.simulator.histories.arithmetic import Number
from culm.simulator.histories.world import Leader, Node, World
from culm.stage_server.worker.effects import RestoreLayers
from culm.stage_server.worker.holdings import CHECKPOINT
from culm.stage_server.worker.work import Save

# What a fault means to whoever reads or writes:
#
#     away      nobody gets an answer                        OSError: asked again, it is no proof (rule 14)
#     full      nobody can write                             OSError: tried again until a newer checkpoint is due
#     slow      every answer takes up to 8 s
#     gone      the mount is away: everything is absent      writes vanish, as into an empty folder
#     unseen    one node sees nothing                        the same, for that node
#     rots      one node reads other bytes than there are    no proof: the others read what there is
#     torn      a file changed after the checkpoint was      its hash differs: that is a proof
#               whole
#
# A write is whole or does not happen. Nodes write and read as ``culm.stage_server.checkpointer`` and ``restorer`` do,
# coordinators as ``culm.coordinator.edges.archive`` does: the same functions check the same bytes.

COORDINATOR = ""  # in place of a node's name
URL = "memory://sim"
THIS_RUN, ANOTHER_RUN = Identity({"code": "this"}), Identity({"code": "another"})
PAUSE = 0.5  # seconds between two attempts
ON_ITS_WAY = 0.3  # seconds in which what a process has sent arrives, though it has ended since
LONG_SEEN = 1.0  # seconds for which a checkpoint has been seen before nobody may pass it over
LOOK_SECONDS = 5.0  # between two looks of a node at what it has written of the last step


class SimulatedStorage:
    """One storage for all."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._folders: dict[str, dict[str, bytes]] = {}
        self._completed: dict[str, float] = {}  # folder -> when its manifest was written
        self._completed_by: dict[str, Leader] = {}  # who ordered that manifest
        self._seen_since: dict[str, float] = {}  # since when a whole folder has been seen, or may be seen again
        self.torn: set[str] = set()  # folders that were whole before
        self._faults: list[tuple[str, str]] = []  # those that last still, each with the node that it is about
        self._shares: dict[tuple[str, int], Save] = {}  # incarnation -> the newest share it has to write
        self._written: dict[tuple[str, int], reports.Saved] = {}  # incarnation -> what it says of the last one
        self._newest: dict[Leader, tuple[int, int]] = {}  # era and step of the newest manifest that it has ordered
        self.losses: list[tuple[int, float]] = []  # what manifests are to say: of which step, and its loss

    def _put(self, who: str, folder: str, name: str, data: bytes) -> None:
        if self._is("away") or self._is("full"):
            raise OSError("the storage does not answer" if self._is("away") else "no space left on device")
        if not self._absent(who):
            self._folders.setdefault(folder, {})[name] = data

    def _read(self, who: str, folder: str, name: str) -> bytes:
        if self._is("away"):
            raise OSError("the storage does not answer")
        if self._absent(who) or name not in self._folders.get(folder, {}):
            raise FileNotFoundError(f"{folder}/{name}")
        rots = ("rots", who) in self._faults and name != MANIFEST
        return self._folders[folder][name] + (b"rotten" if rots else b"")

    def is_whole(self, origin: Origin) -> bool:
        """Whether the manifest and every file have their hashes, whoever can read them now."""
        files = self._folders.get(origin.folder, {})
        if MANIFEST not in files or _sha256(files[MANIFEST]) != origin.sha256:
            return False
        listed = [f for each in named(files[MANIFEST], origin).files.values() for f in each]
        return all(f.name in files and _sha256(files[f.name]) == f.sha256 for f in listed)

    def fails(self, readers: bool = False) -> bool:
        """Whether somebody cannot write at present, or needs long; with ``readers`` also whether one reads nonsense."""
        return any(readers or what != "rots" for what, _ in self._faults)

    def states(self, origin: Origin) -> dict[int, int]:
        """What a whole checkpoint holds, by layer."""
        files = self._folders[origin.folder]
        return {layer: int(files[listed[0].name]) for layer, listed in named(files[MANIFEST], origin).files.items()}

    def leave(self, step: int) -> None:
        """Another run of the same job file, with other code, has left this checkpoint: its bits are not this run's."""
        folder = folder_of(URL, step)
        files: dict[int, tuple[File, ...]] = {}
        for layer in range(self._world.layers):
            pair = ((f"layer-{layer:05d}", str(-step).encode()), (f"layer-{layer:05d}.rest", b""))
            files[layer] = tuple(File(name, len(data), _sha256(data)) for name, data in pair)
            self._folders.setdefault(folder, {}).update(pair)
        manifest = Manifest(job="sim", step=step, fingerprint="", loss=0.0, files=files, identity=ANOTHER_RUN)
        self._folders[folder][MANIFEST] = manifest_to_json(manifest)
        if self._world.iterable:
            stale = Bookmark(version=step, of="", digest="", state=b"100000")
            self._folders[folder][bookmark_file.FILE] = bookmark_file.to_bytes(stale)
        self._completed[folder] = self._world.clock.now

    def tear(self) -> None:
        """A file of a checkpoint changes, after the checkpoint was whole: nobody knows before it is read."""
        folders = [f for f in sorted(self._folders) if MANIFEST in self._folders[f]]
        if folders:
            folder = self._world.random.choice(folders)
            files = self._folders[folder]
            name = self._world.random.choice(sorted(n for n in files if n != MANIFEST))
            files[name] += b"torn"
            self.torn.add(folder)

    def fault(self, what: str, node: str) -> None:
        """``what``: away, full, slow, gone; or, of the node alone, unseen or rots."""
        self._faults.append((what, node))

    def mend(self, what: str, node: str) -> None:
        self._faults.remove((what, node))
        self._seen_since = dict.fromkeys(self._seen_since, self._world.clock.now)

    def _is(self, what: str) -> bool:
        return any(fault == what for fault, _ in self._faults)

    def _absent(self, who: str) -> bool:
        return self._is("gone") or ("unseen", who) in self._faults

    def _later(self, action: Callable[[], None], pause: float = 0.0) -> None:
        """When the storage has answered."""
        seconds = self._world.random.uniform(0.01, 8.0 if self._is("slow") else 0.3)
        self._world.clock.after(pause + seconds, action)

    # ---- what nodes do ----------------------------------------------------------------------------------------------

    def save(self, node: Node, work: Save) -> None:
        """The node's share is written, again until the storage takes it, unless the node dies before."""
        share = {layer: node.arithmetic.states[layer] for layer in work.layers}
        to, folder = (node.name, node.incarnation), folder_of(URL, work.step)
        self._shares[to] = work
        names = {name for layer in share for name in (f"layer-{layer:05d}", f"layer-{layer:05d}.rest")}

        def write(n: Node) -> None:
            files: dict[int, tuple[File, ...]] = {}
            try:
                for layer, state in share.items():
                    listed = []
                    for name, data in ((f"layer-{layer:05d}", str(state).encode()), (f"layer-{layer:05d}.rest", b"")):
                        if self._folders.get(folder, {}).get(name, data) != data and not self._absent(n.name):
                            self._folders[folder].pop(MANIFEST, None)  # as ``layer_file.write_layer`` does
                        self._put(n.name, folder, name, data)
                        listed.append(File(name, len(data), _sha256(data)))
                    files[layer] = tuple(listed)
                if 0 in files and work.bookmark is not None:
                    self._put(n.name, folder, bookmark_file.FILE, bookmark_file.to_bytes(work.bookmark))
                elif 0 in files and not self._absent(n.name):
                    self._folders[folder].pop(bookmark_file.FILE, None)
            except OSError as error:
                n.tell(reports.CheckpointFault(n.name, work.step, str(error)))
                if self._shares[to] is work:  # else a newer share waits
                    self._later(lambda: self._world.receive(to, write), PAUSE)
                return
            saved = reports.Saved(
                node=n.name,
                incarnation=n.incarnation,
                era=work.era,
                step=work.step,
                files=files,
                loss=work.loss,
                best_so_far=work.best_so_far,
            )
            if self._shares[to] is work or to not in self._written:
                self._written[to] = saved
            n.tell(saved)
            if work.last:
                self._later(lambda: self._world.receive(to, look), LOOK_SECONDS)

        def look(n: Node) -> None:
            there = {} if self._absent(n.name) else self._folders.get(folder, {})
            if self._is("away") or (there.keys() >= names and MANIFEST not in there):
                self._later(lambda: self._world.receive(to, look), LOOK_SECONDS)
            elif MANIFEST not in there and self._shares[to] is work:
                n.worker.applying.save_again()

        self._later(lambda: self._world.receive(to, write))

    def bookmark(self, node: Node, folder: str) -> Bookmark | None:
        with suppress(FileNotFoundError):
            return bookmark_file.from_bytes(self._read(node.name, folder, bookmark_file.FILE))
        return None

    def written(self, node: Node) -> reports.Saved | None:
        """What the node says of the last share that it wrote, for a coordinator that may have missed it."""
        return self._written.get((node.name, node.incarnation))

    def restore(self, node: Node, effect: RestoreLayers) -> None:
        """Reads the layers, again until the storage gives them."""
        to, origin = (node.name, node.incarnation), effect.origin
        doubted = False

        def attempt(n: Node) -> None:
            nonlocal doubted
            if n.worker.era != effect.era:
                return
            absent, why, damaged, layer = False, "", None, 0
            try:
                manifest = self._manifest(n.name, origin)
                for layer in effect.layers:
                    if n.worker.holdings.lacks(layer):
                        states = [self._file(n.name, origin.folder, file) for file in manifest.files[layer]]
                        n.worker.fetched(effect.era, layer, origin.step, Number(int(states[0])), CHECKPOINT)
                return
            except FileDamaged as error:
                why, damaged = error.problem, layer if doubted else None
                doubted = True
            except OriginUnseen as error:
                why, absent = str(error), True
            except OSError as error:
                why = str(error)
            n.worker.unread(effect.era)
            n.tell(
                reports.Unread(
                    node=n.name,
                    incarnation=n.incarnation,
                    era=effect.era,
                    origin=origin,
                    why=why,
                    absent=absent,
                    damaged_layer=damaged,
                )
            )
            self._later(lambda: self._world.receive(to, attempt), PAUSE)

        self._later(lambda: self._world.receive(to, attempt))

    def _manifest(self, who: str, origin: Origin) -> Manifest:
        try:
            data = self._read(who, origin.folder, MANIFEST)
        except FileNotFoundError as error:
            raise OriginUnseen(f"there is no {origin.folder}/{MANIFEST}") from error
        return named(data, origin)

    def _file(self, who: str, folder: str, file: File) -> bytes:
        try:
            data = self._read(who, folder, file.name)
        except FileNotFoundError as error:
            raise FileDamaged(f"{folder}/{file.name} is missing") from error
        check_file(folder, file, data)
        return data

    # ---- what coordinators do ---------------------------------------------------------------------------------------

    def carry_out(self, leader: Leader, command: cmd.ForStorage) -> None:
        if isinstance(command, cmd.WriteEvaluation):
            return  # tells of a checkpoint, and makes none
        if isinstance(command, cmd.WriteManifest):
            self.losses.append((command.step, command.loss))
            self._newest[leader] = max(self._newest.get(leader, (-1, -1)), (command.era, command.step))
            late = self._world.random.choice([0.0, 0.3, 3.0]) * self._world.random.random()
            self._world.clock.after(late, lambda: self._complete_if_sent(leader, command, late))
        elif isinstance(command, cmd.Retain):
            self._later(lambda: self._retain(command))
        elif isinstance(command, cmd.Examine):
            self._later(lambda: leader.take(self._look(command.origin, command.layer)))
        else:
            self._later(lambda: self._find(leader))

    def _complete_if_sent(self, leader: Leader, command: cmd.WriteManifest, late: float) -> None:
        if leader.alive or late < ON_ITS_WAY:
            self._complete(leader, command)

    def _complete(self, leader: Leader, command: cmd.WriteManifest) -> None:
        folder = folder_of(URL, command.step)
        manifest = Manifest(
            job="sim",
            step=command.step,
            fingerprint=command.fingerprint,
            loss=command.loss,
            files=command.files,
            identity=command.identity,
            best_so_far=command.best_so_far,
        )
        data = manifest_to_json(manifest)
        try:
            there = {} if self._absent(COORDINATOR) else self._folders.get(folder, {})
            if any(len(there.get(f.name, b"")) != f.size for listed in manifest.files.values() for f in listed):
                raise OSError("a file that a node has written is not seen from the coordinator")
            if MANIFEST in there and manifest_from_json(there[MANIFEST], folder).files == manifest.files:
                data = there[MANIFEST]
            self._put(COORDINATOR, folder, MANIFEST, data)
            self._seen_since[folder] = self._completed[folder] = self._world.clock.now
            self._completed_by[folder] = leader
        except OSError as error:
            leader.take(reports.CheckpointFault("", command.step, str(error)))
            if leader.alive and self._newest[leader] == (command.era, command.step):
                self._later(lambda: self._complete(leader, command), PAUSE)
            return
        self._later(lambda: leader.take(reports.Checkpointed(_origin(command.step, folder, data))))

    def _retain(self, command: cmd.Retain) -> None:
        if self._is("away") or self._absent(COORDINATOR):
            return
        for folder in list(self._folders):
            step = step_of(folder)
            if step is not None and step < command.step and step not in command.kept:
                del self._folders[folder]

    def _find(self, leader: Leader) -> None:
        if self._is("away"):
            leader.take(reports.CheckpointsFound(why="the storage does not answer"))
            if leader.alive:
                self._later(lambda: self._find(leader), PAUSE)
            return
        leader.take(reports.CheckpointsFound(tuple(self._shown())))

    def _shown(self) -> list[reports.Whole]:
        """The checkpoints whose manifests a coordinator sees now, oldest first."""
        return self._there({} if self._absent(COORDINATOR) else self._folders)

    def _there(self, folders: Mapping[str, Mapping[str, bytes]]) -> list[reports.Whole]:
        found = [
            reports.Whole(_origin(step, folder, files[MANIFEST]), _identity(files[MANIFEST]))
            for folder, files in folders.items()
            if MANIFEST in files and (step := step_of(folder)) is not None
        ]
        return sorted(found, key=lambda whole: whole.origin)

    def left_behind(self) -> list[reports.Whole]:
        """Those of the run whose manifest was written last, as ``edges.origins`` finds them; oldest first."""
        return self._of_the_last(self._shown())

    def _of_the_last(self, found: list[reports.Whole]) -> list[reports.Whole]:
        last = max(found, key=lambda whole: self._completed[whole.origin.folder], default=None)
        return [whole for whole in found if last is not None and whole.identity.agrees(last.identity)]

    def shows_another_run(self) -> bool:
        """Whether what was written last is another run's."""
        return any(whole.identity == ANOTHER_RUN for whole in self._of_the_last(self._there(self._folders)))

    def is_away(self) -> bool:
        """Whether nobody gets an answer now."""
        return self._is("away")

    def passed_over(self, origin: Origin, leader: Leader) -> list[Origin]:
        """Whole checkpoints beyond this one that the leader has been able to see for a while.

        Of one that has searched: its own, and what was there when it did. Another leader may live as well and write.
        """
        if self._is("away") or self._is("slow"):
            return []
        now, searched_at = self._world.clock.now, leader.searched_at
        own = [whole.origin for whole in self._shown() if whole.identity == THIS_RUN]
        newer = [c for c in own if c.step > origin.step and self.is_whole(c)]
        knew = {c: searched_at is None or self._completed_by[c.folder] is leader for c in newer}
        return [c for c in newer if self._seen_since[c.folder] < (now if knew[c] else searched_at or 0.0) - LONG_SEEN]

    def _look(self, origin: Origin, layer: int | None) -> reports.Examined:
        try:
            manifest = self._manifest(COORDINATOR, origin)
            for file in manifest.files[layer] if layer is not None else ():
                self._file(COORDINATOR, origin.folder, file)
        except OriginUnseen as unseen:
            others = origin.folder in self._folders or any(MANIFEST in files for files in self._folders.values())
            shows = others and not self._absent(COORDINATOR)
            return reports.Examined(origin, reports.Sight.WRONG if shows else reports.Sight.AWAY, str(unseen))
        except CheckpointCorrupt as error:
            return reports.Examined(origin, reports.Sight.WRONG, error.problem)
        except OSError as error:
            return reports.Examined(origin, reports.Sight.AWAY, str(error))
        return reports.Examined(origin, reports.Sight.THERE)


def _origin(step: int, folder: str, manifest: bytes) -> Origin:
    return Origin(step, folder, _sha256(manifest), manifest_from_json(manifest, folder).best_so_far)


def _identity(manifest: bytes) -> Identity:
    return manifest_from_json(manifest, URL).identity


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
