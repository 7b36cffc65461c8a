"""Grids that evaluate their weights and lose nodes: every evaluation is the plain loop's, and no state differs."""

import random
from typing import Any

import pytest

from culm.coordinator import state as co
from culm.pipeline.instruction import Duty, Instruction
from culm.simulator.histories.node_arithmetic import Arithmetic
from culm.simulator.histories.random_faults import Kill
from culm.simulator.histories.simulated_cluster import Cluster
from culm.stage_server.worker import heir, reduction
from tests.simulation.test_everything import SOAK
from tests.simulation.test_grid import history_of_the_grid


def history(seed: int, **rule: Any) -> Cluster:
    """One of ``history_of_the_grid``, with an evaluation every one to three steps."""
    draw = random.Random(seed)
    return history_of_the_grid(seed, evaluate=(draw.randint(1, 3), draw.randint(1, 9)), **rule)


@pytest.mark.parametrize("fifty", range(200 if SOAK else 1))
def test_every_evaluation_is_the_plain_loops(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 20)):
        cluster = history(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"
        evaluated = {step for (_, step), (*_, found) in cluster.losses.items() if found}
        assert cluster.steps in evaluated, "the final weights are evaluated too"


def killed(seed: int) -> Cluster:
    """Nodes die one after the other at instructions of steps that evaluate, most often at an evaluation itself."""
    draw = random.Random(seed)
    stages, pipelines, microbatches, steps = draw.randint(1, 4), draw.choice([1, 1, 2, 3]), draw.randint(1, 4), 3
    nodes = stages * (draw.choice([1, 2]) if pipelines > 1 else 1)
    evaluated, kills = draw.randint(1, 4), []
    for _ in range(draw.randint(1, 3)):
        op, duty = draw.choice("EEEFB"), Duty(draw.randrange(pipelines), draw.randrange(stages))
        at = Instruction(duty, op, draw.randrange(evaluated if op == "E" else microbatches))  # type: ignore[arg-type]
        kills.append(Kill(f"n{draw.randrange(nodes)}", draw.randint(1, steps), at))
    return Cluster(
        seed,
        stages=stages,
        layers=stages + draw.randint(0, 2),
        microbatches=microbatches,
        steps=steps,
        spares=1,
        nodes=nodes,
        pipelines=pipelines,
        kills=tuple(kills),
        evaluate=(draw.randint(1, 2), evaluated * pipelines),
        disturb=0,
        eager=draw.random() < 0.4,
        ship_every=draw.choice([0, 1, 2]),
        has_buffers=draw.random() < 0.4,
        splits=draw.random() < 0.3,
        reducers=draw.choice([0, 1]),
        metrics=draw.choice([0, 1]),
    )


def fails(seeds: range) -> bool:
    for seed in seeds:
        try:
            killed(seed).run()
        except (AssertionError, KeyError):  # a number differs, or there is none
            return True
    return False


@pytest.mark.parametrize("hundred", range(40 if SOAK else 1))
def test_an_evaluation_goes_on_without_the_nodes_that_are_lost_in_it(hundred: int) -> None:
    assert not fails(range(hundred * 100, hundred * 100 + (100 if SOAK else 40)))


def test_a_prefix_that_counts_as_if_it_had_the_evaluation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction, "accumulates", lambda instruction, inherited: instruction.microbatch >= inherited)
    assert fails(range(90, 99))


def test_an_heir_that_leaves_out_what_the_next_stage_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    needed_for = heir.needed_for
    monkeypatch.setattr(heir, "needed_for", lambda x, alone: {i for i in needed_for(x, alone) if i.op != "E"})
    assert fails(range(467, 468))


def test_an_evaluation_on_buffers_of_the_running_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(self: Arithmetic, duty: Duty, step: int, microbatch: int, x: int | None, last: bool) -> int:
        committed = dict(self.states)
        for layer in self.ranges[duty]:
            buffer = self._buffers.get(self.buffer_key(duty.pipeline, layer))
            if buffer is not None:
                self.states[layer] = committed[layer] >> 61 << 61 | buffer
        found = plain(self, duty, step, microbatch, x, last)
        self.states.update(committed)
        return found

    plain = Arithmetic.evaluate
    monkeypatch.setattr(Arithmetic, "evaluate", evaluate)
    assert fails(range(200))
