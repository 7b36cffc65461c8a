"""Whether a commit can wait for gradients that it has overtaken, on a node that nobody waits for. Pure.

A node that is being seeded gets commits and reduced gradients on streams of their own, and the commit may come first.
A layer that misses one gradient is fetched again, so it pays to wait a little; but only as long as the gradient may
still come, and while few commits are queued behind it.
"""

from culm.pipeline.plan import Plan
from culm.stage_server.worker.outbox import COMMITS_TO_WAIT
from culm.stage_server.worker.position import Position
from culm.stage_server.worker.post import Post
from culm.stage_server.worker.work import V


def may_wait(at: Position, plan: Plan, post: Post[V]) -> bool:
    """Whether the first queued commit waits. Never where this node's readiness was needed for it."""
    if at.commits[-1].step + 1 >= at.end:
        return False  # no later gradient will show that one is lost: the layer is fetched again
    if at.will_pause:
        return False  # nor will one before the run goes on
    for known in (plan, at.commits[0].next_plan):
        if known is not None and any(at.node in stage.required() for stage in known.stages):
            return False
    held = [at.reduced(bucket) for _, bucket in plan.held_buckets(at.node)]
    missing = [key for key in held if key not in post.mailbox]
    # Under a plan with another sender nothing of this step comes any more, whichever of the queued commits brings it.
    # Until this node obeys that plan the new sender, a reducer named anew, waits for its answer, and sends nothing.
    following = [commit.next_plan for commit in at.commits if commit.next_plan is not None]
    if any(_sender(plan, at.node, k.index) != _sender(x, at.node, k.index) for x in following for k in missing):
        return False
    # Streams keep their order: nor does anything come from a sender that has said hello under such a plan, which may
    # wait for this node's answer.
    greeted = {arrival.peer for arrival in post.early.waiting() if arrival.key is None}
    if any(_sender(plan, at.node, key.index) in greeted for key in missing):
        return False
    # Where a later gradient is here, the missing one will not come. The later one may be of any step, since the stream
    # may have been broken, or wait for the plan within this very commit.
    here = (*post.mailbox, *post.early.keys())
    later = {key._replace(step=0) for key in here if key.step > at.version}
    passed = any(key._replace(step=0) in later for key in missing)
    return bool(missing) and not passed and len(at.commits) <= COMMITS_TO_WAIT


def _sender(plan: Plan, node: str, bucket: int) -> str:
    """Who sends the node the bucket's gradient; empty: nobody does."""
    return plan.reducer_of(plan.stage_of(bucket), bucket) if node in plan.receivers(bucket) else ""
