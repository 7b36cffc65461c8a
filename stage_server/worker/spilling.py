"""Which kept tensors may lie on disk: those that nobody needs as long as no node is lost. Pure."""

# Both boxes keep the tensors of the running step until its commit (rule 5), though most of them are never looked at
# again. Of an activation or a gradient between two stages memory is given back only once nothing else holds it:
#
#     the duty that made it, and the one that takes it,    done with the microbatch: until then a graph holds the tensor
#       where these are this node's
#     the node that takes it                               has acknowledged it: until then a stream may be reading it
#
# Such a tensor is *idle*. On disk it is the same value under the same key: whoever asks for it, such as an heir, reads
# it back without noticing. So to choose wrongly costs time and no bit.

from collections.abc import Callable, Mapping

from culm.pipeline import flow
from culm.pipeline.flow import CROSSES
from culm.pipeline.keys import Key
from culm.stage_server.worker.work import V
from culm.stage_server.worker.worker import Worker


def to_spill(
    worker: Worker[V], size_of: Callable[[V], int], spilled: Mapping[Key, V], most: int
) -> list[tuple[Key, V]]:
    """Idle tensors, in the order in which they came, as long as more than ``most`` bytes lie in memory.

    ``spilled``: what lies on disk already.
    """
    boxes = (worker.post.mailbox, worker.post.outbox)
    keys = dict.fromkeys(key for box in boxes for key in box if key.kind in CROSSES)
    values = {key: value for key in keys if (value := worker.post.kept(key)) is not None}
    values = {key: value for key, value in values.items() if spilled.get(key) is not value}
    sizes = {key: size_of(value) for key, value in values.items()}
    left = sum(sizes.values()) - most
    chosen = []
    for key, value in values.items():
        if left <= 0:
            break
        if is_idle(worker, key):
            chosen.append((key, value))
            left -= sizes[key]
    return chosen


def is_idle(worker: Worker[V], key: Key) -> bool:
    """Whether nothing on this node holds the tensor, and whoever takes it has it."""
    plan, at, post = worker.plan, worker.at, worker.post
    if plan is None or key.step != at.version or key.stage >= len(plan.stages) or key.pipeline >= plan.pipelines:
        return False
    for instruction in (flow.maker_of(key), *flow.takers(key, plan)):
        if plan.owner_of(instruction.duty) != at.node:
            continue
        last = instruction._replace(op="W" if at.schedule.splits_at(instruction.stage) else "B")
        if not worker.runner.duties.has_done(last) and not post.holds_whole(instruction.stage):
            return False
    return key not in post.outbox or not set(post.outbox.unacknowledged(key, plan)) - {at.node}
