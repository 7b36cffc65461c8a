"""When a checkpoint is whole, which ones stay, and what follows where the origin of an era cannot be read (rule 14)."""

# A checkpoint comes to be in this order, and exists from its manifest on:
#
#     Saved            each stage's standby, or else its owners, have written its layers' files; ``saved`` collects
#                      them by layer
#     WriteManifest    every layer is there, and the state beyond doubt (``manifests_due``): the coordinator looks at
#                      each file, and writes the manifest
#     Checkpointed     the manifest is there: an era may begin from it, and older ones may go
#     Retain           what is deleted is off the record first, so no era begins from what is about to go
#
# A node that cannot read the origin asks again for as long as it takes. Three things are told apart:
#
# - a file that has its hash, and is of another model, is a proof: another era begins (``bad``);
# - a storage that does not answer proves nothing: the nodes wait, and the run says so (``unread``);
# - a manifest that a node does not see, or a file of which it reads other bytes, proves nothing either: its mount may
#   be gone, its disk be bad, or its folder be that of another machine. The coordinator looks itself (``Examine``);
#   only what it sees is a proof: other files, or other things in place of this manifest.
#
# All of that counts only while the origin is being read, which is until the era's first commit. Later every holder has
# its state, and a checkpoint that turns out bad is merely struck off.

import math
from dataclasses import replace

from culm.coordinator import saving, stopping_early
from culm.coordinator.best import best_checkpoint, noted, written
from culm.coordinator.commands import Command, Examine, Persist, Record, Retain, WriteManifest
from culm.coordinator.decisions import Decision
from culm.coordinator.reports import CheckpointBad, Checkpointed, CheckpointFault, Examined, Saved, Sight, Unread
from culm.coordinator.rolling_back import is_doubted, roll_back, search_first
from culm.coordinator.shares import Shares
from culm.coordinator.state import Search, State
from culm.coordinator.takeover import recovering
from culm.pipeline.checkpoints.manifest import folder_of
from culm.pipeline.money import kinds

# Steps whose files are on record though the checkpoint is not whole. A node may have died before it wrote its share:
# then that checkpoint never becomes whole, and the record of it has to go when newer ones come. But one node may write
# far more slowly than others: its share comes when theirs of many later steps are here, and makes its step whole.
SHARES_KEPT = 64


def saved(state: State, report: Saved) -> Decision:
    """Files of one step, layer by layer: all holders write the same, so it does not matter whose they are."""
    # A share that comes late, of a checkpoint that is whole: another manifest for it would make another origin.
    known = any(report.step == c.step and c.folder == _folder(state, c.step) for c in state.checkpoints)
    if report.era != state.era or known or report.step > state.committed:
        return state, ()
    before = state.saved.get(report.step, Shares())
    known_here = _known_here(state, report.step)
    shares = before.joined(known_here).joined(Shares(report.files, report.loss, report.best_so_far))
    newest = sorted({*state.saved, report.step})[-SHARES_KEPT:]
    dropped = sorted({*state.saved, report.step}.difference(newest))
    state = replace(state, saved={s: x for s, x in {**state.saved, report.step: shares}.items() if s in newest})
    state, told = fault(state, CheckpointFault("", dropped[0], _slow(state))) if dropped else (state, ())
    # Written once: when the last layer came, and not with a share that repeats what was there.
    if len(before.files) == len(state.layer_costs) or len(shares.files) < len(state.layer_costs):
        return state, told
    whole = WriteManifest(
        era=state.era,
        step=report.step,
        loss=shares.loss,
        best_so_far=shares.best_so_far,
        fingerprint=state.fingerprint,
        files=shares.files,
        identity=replace(state.agreement.nodes, lineage=state.agreement.lineage),
    )
    state = replace(state, storage=replace(state.storage, pending=(*state.storage.pending, whole)))
    state, orders = manifests_due(state)
    return state, (*told, *orders)


def _known_here(state: State, step: int) -> Shares:
    """What the coordinator itself knows of a checkpoint: no files, and the numbers of the last commit."""
    last = state.last_commit
    led_here = last is not None and min(last.step + 1, state.steps) == step
    loss = last.loss if last is not None and led_here else math.nan
    return Shares(loss=loss, best_so_far=stopping_early.of_checkpoint(state, step))


def manifests_due(state: State) -> Decision:
    """Orders the manifests of steps whose state is beyond doubt.

    Where holders compare their state that is once the gate after the step's own has passed: files are read while
    training goes on, so what they show is compared then (rule 25). It is at once where no gate follows: after the last
    commit and in a pause; or may follow: where every node is to go.

    After a takeover nodes that were seeded in a pause may be back with all files before anybody who has heard the
    commit is. Then the manifest waits until the takeover is over: who knows the loss may still come.
    """
    storage = state.storage
    pending = tuple(_with_numbers(state, x) for x in storage.pending if x.era == state.era)
    waits = state.settings.audit > 0.0 and not state.rests and state.stopping is None
    due = tuple(
        x
        for x in pending
        if (not waits or x.step <= state.committed - 2) and not (recovering(state) and math.isnan(x.loss))
    )
    if not due:
        return state, ()
    left = tuple(x for x in pending if x not in due)
    ordered = storage.ordered.union(x.step for x in due)
    return replace(state, storage=replace(storage, pending=left, ordered=ordered)), due


def _with_numbers(state: State, manifest: WriteManifest) -> WriteManifest:
    """With what has been told since its last file came."""
    told = Shares(loss=manifest.loss, best_so_far=manifest.best_so_far)
    told = told.joined(state.saved.get(manifest.step, Shares())).joined(_known_here(state, manifest.step))
    return replace(manifest, loss=told.loss, best_so_far=told.best_so_far)


def _slow(state: State) -> str:
    """Why none of the steps on record has become whole."""
    there = {layer for shares in state.saved.values() for layer in shares.files}
    away = [layer for layer in range(len(state.layer_costs)) if layer not in there]
    what = f"no node has written layer {away[0]}" if away else "no step has all shares"
    return f"{what} in the last {SHARES_KEPT} checkpoints: if a node is slow to write, raise [checkpoint] every"


def checkpointed(state: State, report: Checkpointed) -> Decision:
    """Another origin for eras to come. What retention takes away is known no longer before it goes."""
    # Only what is in this run's own folders is counted and deleted. A checkpoint that the run was resumed from is
    # another run's: it stays on record, and where it is.
    new = report.checkpoint
    if is_doubted(state, new):
        return state, ()
    known = sorted({*(c for c in state.checkpoints if c.folder != new.folder), new})
    own = [c for c in known if c.folder == _folder(state, c.step)]
    kept = {*own[-state.settings.checkpoints_kept :], new}
    if (good := best_checkpoint(replace(state, checkpoints=tuple(known)))) is not None:
        kept.add(good)
    if _is_being_read(state):  # retention deleted the origin while nodes read it (rule 14)
        kept.add(state.origin)
    left = tuple(c for c in known if c in kept or c not in own)
    state = replace(
        state,
        checkpoints=left,
        saved={step: shares for step, shares in state.saved.items() if step > new.step},
        # A newer one may be known to fail: a slow storage makes the older one whole after that.
        storage=replace(state.storage, fault="", fault_step=0)
        if new.step >= state.storage.fault_step
        else state.storage,
    )
    text = f"the checkpoint of step {new.step} is whole: {new.folder}"
    state = saving.made(noted(state, {}))
    told: tuple[Command, ...] = (
        Record(kinds.Checkpointed(step=new.step, folder=new.folder), text),
        *written(state, new.step),
    )
    # What this leader does not know of it would delete as well. Once that is known the next one cleans up.
    if state.storage.search is not Search.OVER:
        ready = not recovering(state) and any(node.available for node in state.nodes.values())
        state, searching = search_first(state) if ready else (state, ())
        return state, (Persist(), *told, *searching)
    return state, (Persist(), *told, Retain(new.step, frozenset(c.step for c in left)))


def fault(state: State, report: CheckpointFault) -> Decision:
    """A checkpoint cannot be written at present. The event log hears of it once, until it is whole, or a newer one."""
    whole = max((c.step for c in state.checkpoints if c.folder == _folder(state, c.step)), default=-1)
    # What is known already tells more; a step that is not committed is of an era before.
    if not max(state.storage.fault_step, whole + 1) <= report.step <= state.committed:
        return state, ()
    told = bool(state.storage.fault)
    who = report.node or "the coordinator"
    follows = "training goes on without it" if report.step < state.steps else "it is tried again"
    text = f"{who} cannot write the checkpoint of step {report.step}: {report.why}; {follows}"
    state = replace(state, storage=replace(state.storage, fault=text, fault_step=report.step))
    if told:
        return state, ()
    return state, (Record(kinds.CheckpointFault(node=report.node, step=report.step, why=report.why), text),)


def bad(state: State, report: CheckpointBad) -> Decision:
    """Content of a checkpoint is wrong: an era that is still to begin from it gives way to one from the one before."""
    if recovering(state):  # the era may be far beyond what this leader knows: see ``looked_back``
        return replace(state, storage=replace(state.storage, proof=report)), ()
    known = report.origin in state.checkpoints
    # This one was on record, and is no use. The others on record may be as old, so the storage is searched anew.
    search = Search.NEEDED if state.settings.searches else Search.OVER
    storage = replace(state.storage, proved_bad=state.storage.proved_bad | {report.origin})
    state = replace(state, checkpoints=tuple(c for c in state.checkpoints if c != report.origin), storage=storage)
    if report.origin != state.origin or not _is_being_read(state):
        return state, (Persist(),) if known else ()
    state = replace(state, storage=replace(storage, search=search))
    return roll_back(state, f"{report.node} cannot use the checkpoint of step {report.origin.step}: {report.why}")


def looked_back(state: State) -> Decision:
    """After a takeover: what was said against a checkpoint while the leader heard from the nodes counts now."""
    proof = state.storage.proof
    if proof is None or recovering(state):
        return state, ()
    return bad(replace(state, storage=replace(state.storage, proof=None)), proof)


def unread(state: State, report: Unread) -> Decision:
    """A node waits for the storage; the log hears once a node and era that it takes long, and that it fails."""
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation or report.era != state.era:
        return state, ()
    if report.origin != state.origin or not _is_being_read(state):
        return state, ()
    before = state.storage.unread.get(report.node)
    first = before is None or (before.being_read and not report.being_read)
    kept = before if before is not None and report.being_read and not before.being_read else report
    waiting = {**state.storage.unread, report.node: kept}
    if report.being_read:
        text = f"{report.node} is still reading {state.origin}: {report.why}; it asks the other holders too"
    else:
        text = f"{report.node} cannot read {state.origin}: {report.why}; it tries again, and asks the other holders too"
    commands: list[Command] = []
    if first:
        commands.append(Record(kinds.Waiting(node=report.node, why=report.why), text))
    asked = report.absent or report.damaged_layer is not None
    looks = asked and not state.storage.examined  # one look at a time, whoever asks for it
    if looks:
        commands.append(Examine(state.era, state.origin, report.damaged_layer))
    storage = replace(state.storage, unread=waiting, examined=state.storage.examined or looks)
    return replace(state, storage=storage, detail=text), tuple(commands)


def examined(state: State, report: Examined) -> Decision:
    """What the coordinator sees of an origin that a node does not see."""
    state = replace(state, storage=replace(state.storage, examined=False))
    if report.origin != state.origin or not _is_being_read(state) or report.sight is Sight.BUSY:
        return state, ()
    unread = sorted((name, x.why) for name, x in state.storage.unread.items() if not x.being_read)
    if report.sight is Sight.WRONG:
        return bad(state, CheckpointBad("the coordinator", report.origin, report.why))
    if report.sight is Sight.THERE:
        if not unread:  # whoever asked has gone
            return state, ()
        (name, why), *others = unread
        more = f", nor can {len(others)} others" if others else ""
        mend = "the folder has to be the same one on all machines, such as a mount or s3://, and their disks sound"
        text = f"the coordinator can read {state.origin.folder}, and {name} cannot ({why}){more}: {mend}; "
        text += "it is tried again"
    else:
        # To a coordinator a folder that shows nothing at all looks like a mount that is gone. A user can tell.
        gone = f"if it is gone for good, create {state.origin.folder} again, empty: the run then goes back further"
        text = f"nobody sees {state.origin}: {report.why}; the nodes try again; {gone}"
    if text == state.detail:
        return state, ()
    return replace(state, detail=text), ()


def _is_being_read(state: State) -> bool:
    """Whether nodes may still have to read the era's origin: the first commit shows that every holder has."""
    return bool(state.origin.folder) and state.committed == state.origin.step


def _folder(state: State, step: int) -> str:
    """Where this run writes the checkpoint of a step."""
    return folder_of(state.settings.checkpoint_url, step)
