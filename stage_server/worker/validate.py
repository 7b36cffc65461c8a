"""What holds of a worker after every event, whatever came before. For the simulation and for tests."""

from typing import Any

from culm.pipeline.instruction import Duty
from culm.pipeline.keys import PARTIAL, REDUCED
from culm.stage_server.worker.outbox import COMMITS_TO_WAIT
from culm.stage_server.worker.worker import Worker


def validate(worker: Worker[Any]) -> None:
    """Raises AssertionError, in words, with the number of the rule."""
    _post(worker)
    _duties(worker)
    _holdings(worker)
    at = worker.at
    # Without a plan commits are queued as they come: nothing is applied, and none counts as missed.
    steps = [commit.step for commit in at.commits]
    assert at.plan is None or steps == list(range(at.version, at.committed)), f"{at.node} queues {steps} (rule 2)"
    assert 0 <= at.version <= at.end, f"{at.node} is at version {at.version} of {at.end}"
    for fact in worker.facts.repeated():
        assert (fact.era, fact.step) == (at.era, at.version), f"{at.node} repeats an old fact (rule 6)"


def _post(worker: Worker[Any]) -> None:
    at, owned = worker.at, set(worker.runner.duties.owned)
    for key in worker.post.mailbox:
        assert key.era == at.era, f"{at.node} holds {key} in era {at.era} (rule 1)"
        is_of_use = at.keeps(key) and key.step <= at.committed + 1
        assert is_of_use, f"{at.node} holds {key} in {at.version} (rule 5)"
    for key in worker.post.outbox:
        # Gradients of steps before are kept for nodes that are being seeded: see ``Outbox.forget_before``.
        oldest = at.version - (COMMITS_TO_WAIT if key.kind is REDUCED else 0)
        kept = key.era == at.era and (oldest <= key.step or at.keeps(key)) and key.step <= at.version
        assert kept, f"{at.node} keeps {key} in step {at.version} of era {at.era} (rule 5)"
        if key.kind is REDUCED:  # the whole sum is kept by every holder
            continue
        stage = at.plan.stage_with(key.use) if key.use and at.plan is not None else key.stage
        mine = [Duty(p, stage) for p in key.block.pipelines] if key.kind is PARTIAL else [key.duty]
        assert owned.issuperset(mine), f"{at.node} keeps {key} of a duty that it does not run (rule 3)"


def _duties(worker: Worker[Any]) -> None:
    at, duties = worker.at, worker.runner.duties
    owned = at.plan.duties_of(at.node) if at.plan is not None else ()
    assert duties.owned == owned, f"{at.node} runs {duties.owned}, its plan gives it {owned}"
    held = {duty for duty, step in duties.items() if step.tenure is not None}
    assert held == set(owned), f"{at.node} has a tenure of {sorted(held)}, its plan gives it {owned}"
    for duty, step in duties.items():
        assert step.tenure is not None or not step.done, f"{at.node} has done {step.done} of {duty}, another node's"
        assert step.tenure is not None or step.takeover is None, f"{at.node} is no heir of {duty} any more (rule 9)"
        assert step.inherited == 0 or step.takeover is not None, (
            f"{at.node} inherited of {duty} without a lost node (rule 9)"
        )
        assert step.adopted <= len(step.done), f"{at.node} adopted what it has not done of {duty}"
        block = step.block
        assert block is not None or not step.left, f"{at.node} has sent layers of {duty} in no block (rule 19)"
        parts = [duties.get(Duty(p, duty.stage)) for p in block.pipelines] if block is not None else []
        whole = all(part is not None and part.block == block for part in parts)
        assert whole, f"{at.node} has {duty} in the block {block}, of which it does not have all (rule 19)"


def _holdings(worker: Worker[Any]) -> None:
    at, holdings = worker.at, worker.holdings
    for layer in holdings.asked():
        assert holdings.version_of(layer) is None, f"{at.node} asks for layer {layer}, which is here (rule 11)"
    # One that is told of a commit beyond its next has been passed over: it has given up all that it held, and forfeits
    # its place with that commit.
    passed_over = at.committed > at.version and not holdings.kept()
    for s, stage in enumerate(at.plan.stages if at.plan is not None and not passed_over else ()):
        for layer in stage.layers if at.node in stage.required() else ():
            here = holdings.version_of(layer) is not None or holdings.lacks(layer)
            assert here, f"{at.node} is taken for a holder of stage {s} and has no state of layer {layer} (rule 6)"
            # A copy that is being seeded may be ahead of its node: its source had applied more commits.
            version = holdings.version_of(layer)
            assert version is None or version <= at.version, f"{at.node} has layer {layer} at {version} (rule 2)"
