"""How a stage's gradient becomes one over all pipelines: blocks that leave this node, and buckets that it adds up."""

# A step's gradient is one binary tree over the pipelines (``culm.pipeline.tree``). With three owners of a stage in a
# job of four pipelines, n1 being the reducer of one of the stage's buckets, which is layer 5 or a part of it:
#
#     n0 runs 0 and 1    --PARTIAL [0,2)-->   n1 runs 2   [2,3) is its own   <--PARTIAL [3,4)--   n2 runs 3
#                                              |  [2,4) = [2,3) + [3,4), then [0,4) = [0,2) + [2,4)
#                                              +--REDUCED--> n0, n2, and every standby
#
# A stage's one owner is the reducer of all its buckets, and its own block is the whole: nothing is sent before REDUCED.
#
# A backward comes to a stage's last layer first. So within the last backward of a block the layers that are through may
# leave, one by one, while the layers before them still run:
#
#     Run 0B3, which completes [0,2)    layer 2 is through    PARTIAL [0,2) layer 2 -->
#      │                                layer 1 is through    PARTIAL [0,2) layer 1 -->
#     done                              Reduce [0,2)          PARTIAL [0,2) layer 0 -->
#
# The first layer always waits for the end, so nobody has a stage's whole gradient of a pipeline from a node whose last
# backward is not done. A node that is lost in between has sent the gradient of some layers: an heir runs the pipeline
# again for the others, and of those the reducers have the first value, or the same one (rule 20).
#
# This holds for the first stage alone, whose backward gives nothing that somebody waits for. It is the last one to end
# its step; the gradients of the other stages travel meanwhile.
#
# What has left is this node's still: the outbox has it until the whole sum is here (``Mailbox``), and compute keeps no
# second copy. Where a duty comes here later in the step, a larger block is merged from what has left, which the outbox
# gives back, and from the new gradient.
#
# A reducer that was named within a step, in place of a lost one, may not simply add up: the lost one may have sent its
# sum to some holders. On equal hardware it would be the same sum; on other hardware holders would differ from then on.
# So it waits until every holder has said, under the present plan, that it has none. One that has passes it on instead.

from collections.abc import Iterable
from typing import Generic

from culm.pipeline import flow
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.plan import Plan
from culm.pipeline.ties import Addend
from culm.pipeline.tree import Block
from culm.stage_server.worker import reduction
from culm.stage_server.worker.duty import Duties
from culm.stage_server.worker.position import Position
from culm.stage_server.worker.post import Post
from culm.stage_server.worker.work import Reduce, Sum, V


class Summing(Generic[V]):
    """Reads the records of the duties and what has come; writes into which block a duty's gradient went."""

    def __init__(self, position: Position, duties: Duties[V], post: Post[V]) -> None:
        self._at = position
        self._duties = duties
        self._post = post
        # Bucket -> the step from which on this node is its reducer. Another one may have summed up that very step, also
        # where the plan came with a commit: a node may have been lost since, where the commit was late.
        self._named: dict[int, int] = {}

    def adopt(self, plan: Plan, before: Plan | None, anew: bool) -> None:
        """``before``: the plan so far; ``anew``: an era begins, and nobody has summed up anything of it."""
        mine = self._reduced_here(plan)
        known = self._reduced_here(before) if before is not None and not anew else mine
        kept = {bucket: step for bucket, step in self._named.items() if bucket in mine}
        self._named = {**kept, **dict.fromkeys(mine - known, self._at.committed)} if not anew else {}

    def end_step(self) -> None:
        self._named = {bucket: step for bucket, step in self._named.items() if step >= self._at.version}

    def _reduced_here(self, plan: Plan) -> set[int]:
        held = plan.held_buckets(self._at.node)
        return {bucket for s, bucket in held if plan.reducer_of(s, bucket) == self._at.node}

    # ---- what leaves this node --------------------------------------------------------------------------------------

    def next_reduce(self) -> Reduce[V] | None:
        """A block of pipelines whose backwards are done at a stage, and which is not merged or not sent yet."""
        for mine in self._duties.owned_at.values():
            if (work := self._next_reduce(mine)) is not None:
                return self._begin(work)
        return None

    def completed_by(self, instruction: Instruction) -> Reduce[V] | None:
        """The block that is whole once this is done, where it leaves then and its layers may leave before that."""
        at, plan, duty = self._at, self._at.plan, instruction.duty
        last = instruction.op == "B" and instruction.microbatch + 1 == at.microbatches
        # Of other stages the one before waits for what this backward gives. Nothing is to be sent in its way.
        if not last or plan is None or not flow.takes_samples(duty.stage) or len(plan.stages[duty.stage].layers) == 1:
            return None
        if not self._is_complete(duty, instruction):
            return None
        work = self._next_reduce(self._duties.owned_at[duty.stage], duty)
        leaves = work is not None and work.leaves and duty.pipeline in work.block.pipelines
        return self._begin(work) if work is not None and leaves else None

    def _next_reduce(self, mine: list[Duty], completed: Duty | None = None) -> Reduce[V] | None:
        """Of a stage; ``mine``: the duties of it that this node runs; ``completed``: one that counts as done."""
        done: set[int] = set()
        for duty in mine:
            step = self._duties[duty]
            if step.count["B"] < self._at.microbatches and not step.inherited and duty != completed:
                continue  # as it is mostly: this is asked before every instruction
            if duty == completed or self._is_complete(duty):
                done.add(duty.pipeline)
        if not done or self._post.holds_whole(stage := mine[0].stage):
            return None
        steps = {p: self._duties[Duty(p, stage)] for p in done}
        if all(step.sent for step in steps.values()):
            return None
        expected = done | {duty.pipeline for duty in mine if duty.pipeline not in done and self._is_expected(duty)}
        merged = {step.block for step in steps.values() if step.block is not None}
        sent = {step.block for step in steps.values() if step.block is not None and step.sent}
        found = reduction.next_block(done, expected, merged, sent, self._pipelines)
        if found is None:
            return None
        block, leaves = found
        duties = [Duty(p, stage) for p in block.pipelines]
        if (given := self._left_before(block, duties)) is None:
            return None
        return Reduce(
            stage=stage,
            step=self._at.version,
            block=block,
            leaves=leaves,
            tenures=tuple((duty, self._tenure(duty)) for duty in duties),
            left=frozenset(layer for layer, last in steps[block.first].left.items() if last == block),
            given=given,
        )

    def _left_before(self, block: Block, duties: list[Duty]) -> tuple[tuple[Addend, Block, V], ...] | None:
        """What has left in smaller blocks, of addends whose whole sum is not here; None: some of it is still to come.

        From a card the values of a layer come after it has left.
        """
        plan, found = self._at.plan, list[tuple[Addend, Block, V]]()
        assert plan is not None
        for duty in duties:
            for layer, piece in self._duties[duty].left.items():
                if piece == block or piece.first != duty.pipeline:
                    continue
                for addend in plan.addends[layer]:
                    if self._at.reduced(addend.bucket) in self._post.mailbox:
                        continue
                    value = self._post.outbox.get(self._at.partial(addend, piece))
                    if value is None:
                        return None
                    found.append((addend, piece, value))
        return tuple(found)

    def _begin(self, work: Reduce[V]) -> Reduce[V]:
        """Its duties are in one block from now on: a plan that takes one of them finds them so, while the work runs."""
        for duty, _ in work.tenures:
            step = self._duties[duty]
            if step.block != work.block:
                step.block, step.sent = work.block, False
        return work

    def _is_complete(self, duty: Duty, last: Instruction | None = None) -> bool:
        """Whether all that its gradient needs is done. ``last``: counts as done."""
        step = self._duties[duty]
        if not step.inherited:
            return step.sums and len(step.done) + (last is not None) == self._at.size_of(duty.stage)
        done = step.done if last is None else step.done | {last}
        return step.sums and reduction.is_complete(self._at.order(duty), done, step.inherited)

    def _is_expected(self, duty: Duty) -> bool:
        """Whether the duty's gradient is going to be whole here, as far as is known."""
        return self._duties[duty].takeover is None or self.is_lacking(duty) is not False

    def leaves(self, work: Reduce[V], layer: int) -> None:
        """A layer of the block is merged while the last backward runs. Its values come to ``has_left``, maybe later."""
        if self._is_current(work):
            for duty, _ in work.tenures:
                self._duties[duty].left[layer] = work.block

    def has_left(self, work: Reduce[V], values: Iterable[tuple[Addend, V]]) -> None:
        """The values of such a layer."""
        if self._is_current(work):
            for addend, value in values:
                self._put(work, addend, value)

    def reduced(self, work: Reduce[V], values: Iterable[tuple[Addend, V]]) -> None:
        """Takes a block's gradient, a value an addend. Of duties that are no longer this node's it is dropped."""
        if not self._is_current(work):
            return
        assert self._at.plan is not None
        layers = self._at.plan.stages[work.stage].layers if work.leaves else range(0)
        for duty, _ in work.tenures:
            self._duties[duty].sent = work.leaves
            self._duties[duty].left = dict.fromkeys(layers, work.block)
        for addend, value in values:
            self._put(work, addend, value)

    def _is_current(self, work: Reduce[V]) -> bool:
        return work.step == self._at.version and all(self._duties.is_current(*each) for each in work.tenures)

    def _put(self, work: Reduce[V], addend: Addend, value: V) -> None:
        assert self._at.plan is not None
        is_sum = work.block == Block(0, self._pipelines) and not self._at.plan.is_shared(addend.bucket)
        if is_sum and self._may_sum(addend.bucket):
            self._put_whole(addend.bucket, value)
        elif self._at.reduced(addend.bucket) not in self._post.mailbox:
            self._post.put_out(self._at.partial(addend, work.block), value)

    # ---- what this node adds up -------------------------------------------------------------------------------------

    def next_sum(self) -> Sum[V] | None:
        """A bucket of which every pipeline is here, of each use, and the whole sum is not."""
        mailbox, plan = self._post.mailbox, self._at.plan
        for whole, blocks in mailbox.partials(self._at.version):
            assert plan is not None
            bucket, uses = whole.index, plan.uses_of(whole.index)
            there = [sum(len(block.pipelines) for block in blocks.get(use, ())) for use in uses]
            if all(count == self._pipelines for count in there) and self._may_sum(bucket):
                keys = ((use, [(b, self._at.partial(Addend(bucket, use), b)) for b in blocks[use]]) for use in uses)
                values = tuple((use, tuple((b, mailbox.get(key)) for b, key in of_use)) for use, of_use in keys)
                return Sum(whole.stage, plan.layer_of(bucket), bucket, self._at.version, values)
        return None

    def summed(self, work: Sum[V], value: V) -> None:
        """Takes a bucket's whole gradient, if it is still this node's to sum up."""
        # An era may have begun since, from a checkpoint of this very step: then its blocks are here no more (rule 1).
        blocks = ((Addend(work.bucket, use), block) for use, of_use in work.uses for block, _ in of_use)
        here = work.step == self._at.version and all(self._at.partial(*x) in self._post.mailbox for x in blocks)
        if here and self._may_sum(work.bucket):
            self._put_whole(work.bucket, value)

    def _may_sum(self, bucket: int) -> bool:
        """Whether this node is the bucket's reducer, and no holder has a sum of another one."""
        at, plan = self._at, self._at.plan
        if plan is None or plan.reducer_of(plan.stage_of(bucket), bucket) != at.node:
            return False
        if self._named.get(bucket) != at.version:
            return True
        told = [self._post.told(peer) for peer in plan.receivers(bucket) if peer != at.node]
        # One that is steps ahead knows that this step is committed: then the sum is with whoever was required for it.
        return all(x is not None and bucket not in x.reduced and x.committed <= at.version for x in told)

    def _put_whole(self, bucket: int, value: V) -> None:
        key = self._at.reduced(bucket)
        self._post.mailbox.put(key, value)
        self._post.pass_on(key)

    # ---- what an heir has to know -----------------------------------------------------------------------------------

    def is_lacking(self, duty: Duty) -> bool | None:
        """Whether a reducer of the stage still lacks the duty's pipeline; None: it has not said so yet."""
        at, plan = self._at, self._at.plan
        assert plan is not None
        unknown = False
        for addend in (x for layer in plan.stages[duty.stage].layers for x in plan.addends[layer]):
            key = at.reduced(addend.bucket)
            if key in self._post.mailbox:
                continue
            reducer = plan.reducer_of(key.stage, addend.bucket)
            if reducer == at.node:
                covered = duty.pipeline in self._post.mailbox.covers(key, addend.use, self._pipelines)
            elif (told := self._post.told(reducer)) is None:
                unknown = True
                continue
            else:
                covered = told.committed > at.version or duty.pipeline in told.covers.get(addend, ())
            if not covered:
                return True
        return None if unknown else False

    @property
    def _pipelines(self) -> int:
        return self._at.plan.pipelines if self._at.plan is not None else 0

    def _tenure(self, duty: Duty) -> int:
        tenure = self._duties[duty].tenure
        assert tenure is not None, f"{duty} is another node's"
        return tenure
