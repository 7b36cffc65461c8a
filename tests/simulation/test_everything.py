"""Histories that mix every fault the simulator knows: what is exact under each alone is so under all of them."""

import os
import random
from typing import Any

import pytest

from culm.coordinator import state as co
from culm.coordinator import takeover
from culm.coordinator.commands import Persist
from culm.simulator.histories.after_the_end import Afterlife
from culm.simulator.histories.hostile_peer import speaking
from culm.simulator.histories.simulated_cluster import Cluster
from culm.simulator.histories.start_up import NOTHING, Fault, Wrong

SOAK = os.environ.get("CULM_SOAK") == "1"


def what_is_wrong(draw: random.Random, machines: int, layers: int, steps: int) -> Wrong:
    """With one machine; most often nothing. Where there is no other one, it would be the job's fault (rule 16)."""
    step, layer = draw.randrange(steps), draw.randrange(layers)
    machine = f"n{draw.randrange(machines)}"
    if machines == 1:
        return NOTHING
    return draw.choice(
        [
            NOTHING,
            NOTHING,
            Wrong(starts_late=frozenset([machine])),
            Wrong(fault=Fault(step, layer, dies=draw.random() < 0.5, on=machine), for_ever=False),
            Wrong(stalls=machine, stall_seconds=draw.choice([3.0, 20.0])),
            Wrong(cannot_die=machine),
            Wrong(late_beats=1.0),
        ]
    )


def history_of_everything(seed: int, **rule: Any) -> Cluster:
    """Nodes, links, machines, coordinators, Redis and the storage fail; nodes come and go, the model is cut anew."""
    draw = random.Random(f"everything {seed}")
    stages, spares = draw.choice([1, 2, 2, 3, 3, 4]), draw.choice([0, 0, 1, 2])
    layers, steps = stages + draw.choice([0, 1, 3, 5]), draw.choice([5, 8, 15])
    cuts_anew = draw.random() < 0.4
    names = [*(f"n{i}" for i in range(stages + spares)), *(f"late{i}" for i in range(1, 9))]
    in_zones = draw.random() < 0.3
    return Cluster(
        seed,
        stages=stages,
        layers=layers,
        microbatches=draw.choice([1, 2, 3]),
        steps=steps,
        spares=spares,
        disturb=draw.choice([0, 1, 1, 2, 3]),
        outages=draw.choice([0, 0, 1, 2]),
        changes=draw.choice([0, 0, 1, 3]),
        warnings=draw.choice([0, 0, 1]),
        links=draw.choice([0, 0, 1, 2]),
        storage=draw.choice([0, 0, 1, 2]),
        forgets=draw.choice([0, 0, 1, 2]),
        stops=draw.choice([0, 0, 1, 2]),
        hostile=speaking(draw.choice([0, 0, 0, 4])),
        checkpoint_every=draw.choice([0, 1, 2, 3]),
        settle_seconds=0.3 if cuts_anew else 30.0,
        most_stages=stages + draw.choice([1, 2]) if cuts_anew and draw.random() < 0.5 else 0,
        zones={name: draw.choice("ab") for name in names} if in_zones else {},
        bulk_seconds=draw.choice([0.0, 0.0, 0.0, 0.02]),
        eager=draw.random() < 0.3,
        lead=draw.choice([1, 1, 2]),
        splits=draw.random() < 0.2,
        ship_every=draw.choice([0, 0, 1, 2]),
        wrong=what_is_wrong(draw, stages + spares, layers, steps),
        afterlife=Afterlife(draw.choice([1, 2])) if draw.random() < 0.3 else None,
        **({"copies": draw.choice([2, 2, 2, 3])} | rule),
    )


@pytest.mark.parametrize("fifty", range(400 if SOAK else 1))
def test_whatever_goes_wrong_together_the_history_ends_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = history_of_everything(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (13, "after the last commit a standby was seeded for ever over a broken link, beside a node that was free"),
        (268, "Redis had forgotten who was ordered to die: it was to be seeded, and the model looked before its end"),
        (923, "a commit of a history that nobody goes on from was told to a node of the other one, and not counted"),
        (2666, "two holders sent a node the same layer; the later answer, of a step before, was put over the first"),
        (17544, "an era began at step 0, while a slow storage's answer that step 12 was whole was on its way"),
        (13864, "an owner that had missed a commit had an earlier owner's sum, and consumers not what that one gave"),
        (15272, "a file of the last checkpoint was torn after the last commit: the model read it unchecked"),
        (20854, "after the last commit two only copies were to seed each other over a broken link, beside free nodes"),
        (51799, "Redis came back from an outage with a higher term: the only coordinator went, and nobody led"),
    ],
)
def test_everything_that_failed_once(seed: int, why: str) -> None:
    history_of_everything(seed, copies=2).run()


@pytest.mark.parametrize("fifty", range(40 if SOAK else 1))
def test_nodes_that_say_that_they_end_change_no_bit(fifty: int) -> None:
    """Also while a new coordinator still hears from the nodes: it made a plan before it knew theirs."""
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        history_of_everything(seed, leaves=1 + seed % 3).run()


def test_a_log_that_does_not_say_that_the_run_is_done_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator of the last commit dies before the event is in the log, and the next one adds none."""
    monkeypatch.setattr(takeover, "done_record", lambda state: Persist())
    with pytest.raises(AssertionError, match="no event says so"):
        history_of_everything(268).run()
    monkeypatch.undo()
    history_of_everything(268).run()
