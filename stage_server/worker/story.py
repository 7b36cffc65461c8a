"""What has become of one tensor on a node, in words: for whoever looks for the reason why a run stands still."""

from typing import Any

from culm.pipeline.flow import CROSSES, consumers, is_producer, maker_of
from culm.pipeline.keys import Key
from culm.stage_server.worker.worker import Worker


def story(worker: Worker[Any], key: Key) -> str:
    """One line a fact. Reads the worker, and changes nothing."""
    at, plan = worker.at, worker.plan
    lines = [f"{at.node} is in step {at.version} of era {at.era}, {len(at.commits)} commits ahead of what it applied"]
    if plan is None:
        return "\n".join([*lines, f"{at.node} has no plan"])
    giver = next((node for node in plan.members if is_producer(node, key, plan)), None)
    takers = consumers(key, plan, giver) if giver is not None else ()
    lines.append(f"under plan {plan.order} {key} goes from {giver} to {', '.join(takers) or 'nobody'}")
    if key.era != at.era:
        lines.append("it is of another era: whoever brings it is not heard (rule 1)")
    elif key.step < at.version:
        lines.append("its step is committed: nothing of it is needed")
    if key in worker.post.outbox:
        lacking = worker.post.outbox.unacknowledged(key, plan)
        lines.append(f"it was put out here; {', '.join(lacking) or 'nobody'} has not acknowledged it")
    elif giver == at.node:
        lines.append(f"it was not put out here: {_why_not_made(worker, key)}")
    if key in worker.post.mailbox:
        lines.append("it is here, and acknowledged")
    elif at.node in takers:
        waits = [arrival for arrival in worker.post.early.waiting() if arrival.key == key]
        lines.extend(f"it came from {x.peer} under plan {x.order}, and waits for that plan" for x in waits)
        if not waits:
            lines.append(f"it has not come from {giver}")
    if worker.awaited == key:
        lines.append("the next instruction waits for it")
    return "\n".join(lines)


def _why_not_made(worker: Worker[Any], key: Key) -> str:
    if key.kind not in CROSSES:
        return "the backwards before it are not done"
    made_by = maker_of(key)
    if worker.runner.duties.has_done(made_by):
        return f"{made_by} was done, and nobody takes its result"
    if (needed := worker.post.missing(made_by)) is not None:
        return f"{made_by} lacks {needed}"
    return f"{made_by} has not run"
