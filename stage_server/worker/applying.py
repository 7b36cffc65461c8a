"""What a commit does to the layers that a node holds: which of them take its step, and which are saved after it."""

# A commit of step t finds each layer that the plan gives to this node in one of these cases:
#
#     version t, and the reduced gradient is here    it takes the step: all that an owner or hot standby holds
#     version t, no gradient                         it keeps the commit as a follow-up: it is being seeded (rule 11)
#     behind with follow-ups, or no state yet        the same
#     version t + 1 or later                         nothing: its source had applied the step before it sent the layer
#
# ``Holdings.takes_step`` tells them apart. It relies on ``Worker.next_work``, which gives out catch-ups before commits:
# a layer that is behind and has no follow-ups left would miss the step, and nothing would show it.
#
# An owner or hot standby is in the first case, since the coordinator commits only when it has reported ready (rule 6).
# Else a leader decided the commit by a plan in which another node holds the stage. This node can follow no more: it
# forfeits what it holds and joins anew.
#
# Layers that the present plan does not name go first (rule 6). A copy of them would stay behind: no gradient comes for
# it any more, and a later plan may name the layer again.

import math
from typing import Generic

from culm.pipeline.commit import Commit
from culm.pipeline.plan import Plan
from culm.stage_server.worker.catching_up import may_wait
from culm.stage_server.worker.effects import Effect, Forfeit
from culm.stage_server.worker.holdings import Followup, Holdings
from culm.stage_server.worker.position import Position
from culm.stage_server.worker.post import Post
from culm.stage_server.worker.work import Apply, Save, V


class Applying(Generic[V]):
    """The commits that wait are in the position, the follow-ups in the holdings."""

    def __init__(self, position: Position, holdings: Holdings[V], post: Post[V], effects: list[Effect]) -> None:
        self._at = position
        self._holdings = holdings
        self._post = post
        self._effects = effects
        # What this node was last told to save after the last commit.
        self._last_share: frozenset[int] = frozenset()
        # And of the newest other version that it was told to save: a pause keeps the run there.
        self._share: tuple[int, frozenset[int]] = (0, frozenset())

    def end_era(self) -> None:
        self._last_share = frozenset()
        self._share = (0, frozenset())

    def save_again(self) -> None:
        """What was written of the last checkpoint is not there: ``save_at_rest`` gives it once more."""
        self.end_era()

    def work_of(self, commit: Commit, plan: Plan) -> Apply[V] | None:
        """The first queued commit as a piece of work; None while it waits for gradients that it has overtaken."""
        at, holdings, mailbox = self._at, self._holdings, self._post.mailbox
        if may_wait(at, plan, self._post):
            return None
        gradients = []
        holdings.give_up(plan.layers_of(at.node))
        for stage, layer in plan.held_layers(at.node):
            keys = [at.reduced(x.bucket) for x in plan.addends[layer]]
            values = tuple(mailbox.get(key) if key in mailbox else None for key in keys)
            followup = Followup(commit.step, commit.scale, values)
            gradient = followup.whole
            # Where a commit before was missed too, ``Worker._skip_to`` has dropped the state, whatever gradient came.
            passed_over = holdings.version_of(layer) is None and not holdings.lacks(layer)
            if (gradient is None or passed_over) and at.node in plan.stages[stage].required():
                lacking = "state" if passed_over else "gradient"
                why = f"step {commit.step} was committed without it: it has no {lacking} of layer {layer}"
                self._effects.append(Forfeit(why))
            if holdings.takes_step(layer, followup) and gradient is not None:
                gradients.append((layer, gradient))
        return Apply(commit.step, commit.scale, tuple(gradients))

    def save_after(self, commit: Commit, every: int) -> Save | None:
        """What this node lends to a checkpoint now that the commit is applied. ``every``: in steps; 0: never."""
        at = self._at
        # Before the closing step, which changes nothing: the final weights are safe while they are evaluated.
        is_final = bool(every) and at.version == at.steps < at.end
        due = every and at.version % every == 0 and at.version < at.steps
        whole = self._saves_now() if due or is_final or commit.save else ()
        if is_final:
            self._last_share = frozenset(whole)
        if whole:
            self._share = (at.version, frozenset(whole))
        return self._save(whole, commit) if whole else None

    def save_at_rest(self, last: Commit | None) -> Save | None:
        """What this node lends to the checkpoint of the last step, or of a pause, as of the present plan.

        No later checkpoint makes good for a share that went with its node. So whoever takes that one's place saves it
        again. A node that was seeded after that commit has not heard its loss: the coordinator puts it in.
        """
        at, whole = self._at, self._saves_now()
        if at.version >= at.end:
            if self._last_share.issuperset(whole):
                return None
            self._last_share = frozenset(whole)
            return self._save(whole, last)
        version, told = self._share
        has_begun = at.plan is not None and at.version > at.plan.origin.step  # else there is nothing new to save
        if not whole or not has_begun or (version == at.version and told.issuperset(whole)):
            return None
        self._share = (at.version, frozenset(whole))
        return self._save(whole, last)

    def _save(self, layers: tuple[int, ...], commit: Commit | None) -> Save:
        """``commit``: that led to this version, or after which the run is over."""
        at = self._at
        step = min(at.version, at.steps)
        loss, best_so_far = (commit.loss, commit.best_so_far) if commit is not None else (math.nan, None)
        return Save(
            era=at.era,
            step=step,
            layers=layers,
            loss=loss,
            bookmark=at.bookmark,
            best_so_far=best_so_far,
            last=step == at.steps or at.is_paused,
        )

    def _saves_now(self) -> tuple[int, ...]:
        """Only layers at the version: a layer of another one would spoil the checkpoint."""
        named = self._at.plan.saved_by(self._at.node) if self._at.plan is not None else ()
        return tuple(x for x in named if self._holdings.version_of(x) == self._at.version)
