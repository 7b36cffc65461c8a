"""Grids that evaluate their weights and lose nodes: every evaluation is the plain loop's, and no state differs."""

import random
from typing import Any

import pytest

from culm.coordinator import state as co
from culm.coordinator import step_numbers, stopping_early
from culm.pipeline.early_stop import NONE_SO_FAR, BestSoFar
from culm.pipeline.instruction import Duty, Instruction
from culm.simulator.histories.after_the_end import Afterlife
from culm.simulator.histories.fault_counts import Kill
from culm.simulator.histories.node_arithmetic import Arithmetic
from culm.simulator.histories.simulated_cluster import Broken, Cluster
from culm.stage_server.worker import heir, reduction
from tests.simulation.test_everything import SOAK
from tests.simulation.test_grid import history_of_the_grid


def history(seed: int, **rule: Any) -> Cluster:
    """One of ``history_of_the_grid``, with an evaluation every one to three steps; a half may end early."""
    draw = random.Random(seed)
    settings: dict[str, Any] = {"evaluate": (draw.randint(1, 3), draw.randint(1, 9))}
    settings["worse_allowed"] = draw.choice([0, 0, 0, 1, 1, 2])
    return history_of_the_grid(seed, **(settings | rule))


@pytest.mark.parametrize("fifty", range(200 if SOAK else 1))
def test_every_evaluation_is_the_plain_loops(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = history(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"
        evaluated = {step for (_, step), (*_, found) in cluster.losses.items() if found}
        assert cluster.trained in evaluated, "the final weights are evaluated too"


def ends_early(seed: int) -> Cluster:
    """Most of these end early. Coordinators, Redis, every copy of a stage, files of checkpoints are lost on the way."""
    draw = random.Random(f"ends early {seed}")
    rule: dict[str, Any] = {
        "evaluate": (draw.choice([1, 1, 2, 3]), draw.randint(1, 9)),
        "worse_allowed": draw.choice([1, 1, 2, 3]),
        "steps": draw.choice([5, 8, 15]),
        "disturb": draw.randint(1, 6),
        "outages": draw.randint(0, 3),
        "forgets": draw.randint(0, 2),
        "power_cuts": draw.choice([0, 1]),
        "storage": draw.choice([0, 0, 1]),
        "checkpoint_every": draw.choice([0, 1, 2, 3]),
        "afterlife": Afterlife(draw.choice([1, 2, 4])) if draw.random() < 0.5 else None,
    }
    return history_of_the_grid(seed, **rule)


@pytest.mark.parametrize("fifty", range(200 if SOAK else 1))
def test_whatever_is_lost_a_run_ends_where_the_plain_loop_does(fifty: int) -> None:
    early = 0
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 10)):
        cluster = ends_early(seed).run()
        assert (cluster.state.phase, cluster.state.steps) == (co.Phase.DONE, cluster.trained), f"seed {seed}"
        early += cluster.trained < cluster.steps
    assert early


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (365, "an heir had no room for a forward, since the backward of a later one waited for its turn"),
        (2221, "a closing step was committed anew by a leader that knew no commit before it"),
    ],
)
def test_what_failed_once(seed: int, why: str) -> None:
    ends_early(seed).run()


def test_what_was_best_and_is_known_to_the_leader_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes back to a checkpoint, and does not know what was best before that one."""

    def remembered(state: co.State) -> BestSoFar | None:
        return state.last_commit.best_so_far if state.last_commit is not None else NONE_SO_FAR

    monkeypatch.setattr(step_numbers, "best_so_far", remembered)
    monkeypatch.setattr(stopping_early, "best_so_far", remembered)
    with pytest.raises(Broken, match="another layer"):
        ends_early(14).run()


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
