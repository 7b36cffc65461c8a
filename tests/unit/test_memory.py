"""What plans ask of a node's memory, and what becomes of those that ask too much."""

from dataclasses import replace
from pathlib import Path

import pytest

from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.memory import Budget, tight
from culm.coordinator.placement import place, promote
from culm.coordinator.repartition import propose
from culm.coordinator.reports import Available, Joined, Left
from culm.coordinator.standbys import repair
from culm.coordinator.state import Phase, Settings, State
from culm.coordinator.step_cost import Situation
from culm.pipeline.job import parse_job
from culm.pipeline.layer_bytes import LayerBytes, at_boundaries, of_layers
from culm.pipeline.plan import Stages
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.footprint import footprint
from culm.stage_server.watching.control_groups import memory_limits, processor_limits
from culm.stage_server.watching.memory import memory_bytes
from tests.hostile.job_files import job_text
from tests.integration.wide_embedding import WIDTH, WORDS
from tests.unit.test_repartition import CALM

GB = 10**9
PARAMETERS = (1e8, 1e8, 1e8, 1e8)
LAYERS = (LayerBytes(state=1_200_000_000, gradient=400_000_000),) * 4
NODES = ("n0", "n1", "n2", "n3")


def test_a_layer_is_counted_once_and_each_block_of_its_gradient() -> None:
    two = place(("n0", "n1"), PARAMETERS, 2, copies=1)
    assert of_layers(two, LAYERS) == {"n0": 3.2 * GB, "n1": 3.2 * GB}
    with_standbys = place(("n0", "n1"), PARAMETERS, 2, copies=2)
    assert of_layers(with_standbys, LAYERS) == {"n0": 6.4 * GB, "n1": 6.4 * GB}
    alone = place(("n0",), PARAMETERS, 1, copies=1, pipelines=8)
    assert of_layers(alone, LAYERS) == {"n0": 4 * (1.2 + 4 * 0.4) * GB}
    shared = place(("n0", "n1"), PARAMETERS, 1, copies=1, pipelines=6)
    assert of_layers(shared, LAYERS)["n0"] == 9.6 * GB, "three or four pipelines each"


def test_while_other_stages_are_prepared_both_are_held() -> None:
    before, after = place(NODES, PARAMETERS, 4, copies=1), place(("n0", "n1"), PARAMETERS, 2, copies=1)
    needed = of_layers(after, LAYERS, before)
    assert needed == {"n0": 3.2 * GB, "n1": 4.8 * GB, "n2": 1.6 * GB, "n3": 1.6 * GB}


def test_who_lacks_most_comes_first_and_who_has_told_nothing_lacks_nothing() -> None:
    stages = place(NODES, PARAMETERS, 4, copies=1)
    budget = Budget(layers=LAYERS, told={"n0": GB, "n1": GB // 2, "n2": 0, "n3": 2 * GB})
    small = budget.too_small(stages)
    assert small == ("n1", "n0")
    assert budget.in_words(small, stages) == "n1 would need 1.60 GB and has 500.00 MB, and 1 more lack memory"


def test_boundary_tensors_of_every_pipeline_and_microbatch_are_counted() -> None:
    layers = tuple(replace(layer, boundary=10 * (i + 1)) for i, layer in enumerate(LAYERS))
    chain = place(("n0", "n1", "n2"), PARAMETERS, 3, copies=1, pipelines=2)  # layers 0 | 1 | 2, 3
    assert at_boundaries(chain, layers, 8) == {"n0": 2 * 8 * 10, "n1": 2 * 8 * (10 + 20), "n2": 2 * 8 * 20}
    alone = place(("n0",), PARAMETERS, 2, copies=1)
    assert at_boundaries(alone, layers, 8) == {"n0": 8 * 20}, "between two stages of one node a tensor is kept once"
    assert at_boundaries(place(NODES, PARAMETERS, 1, copies=1, pipelines=4), layers, 8) == {}


def test_of_two_cuts_the_larger_boundaries_count_and_of_a_node_that_spills_what_stays_in_memory() -> None:
    layers = tuple(replace(layer, boundary=GB * (i + 1)) for i, layer in enumerate(LAYERS))
    before, after = place(NODES, PARAMETERS, 4, copies=1), place(("n0", "n1"), PARAMETERS, 2, copies=1)
    budget = Budget(layers=layers, microbatches=2, kept={"n1": GB})
    assert budget.asked(after, before) == {"n0": 7.2 * GB, "n1": 5.8 * GB, "n2": 11.6 * GB, "n3": 7.6 * GB}


def started(*told: int, stages: int = 2) -> State:
    state = begin(Settings(stages=stages, microbatches=2, steps=5, nodes=2))
    for i, size in enumerate(told):
        available = Available(
            node=f"n{i}", incarnation=1, layer_costs=PARAMETERS, layer_bytes=LAYERS, memory_bytes=size
        )
        for report in (Joined(node=f"n{i}", incarnation=1, address=f"n{i}:1"), available):
            state, _ = advance(state, report, 0.0)
            validate(state)
    return state


def owners(stages: Stages) -> list[str]:
    return [stage.owner for stage in stages]


def test_a_run_waits_for_nodes_with_more_memory_and_says_what_is_lacking() -> None:
    state = started(16 * GB, 4 * GB)
    assert state.phase is Phase.WAITING
    assert state.detail == (
        "waiting for nodes with more memory: for 2 stages on 2 nodes n1 would need 6.40 GB and has 4.00 GB; "
        "add nodes, or cut the model into more stages; if a node has more, tell it with --memory"
    )
    state = started(16 * GB, 4 * GB, 16 * GB)
    assert state.plan is not None
    assert owners(state.plan.stages) == ["n0", "n2"], "n1 is left out"


def test_unknown_memory_binds_nobody() -> None:
    assert started(0, 0).plan is not None


def test_no_shape_is_chosen_that_does_not_fit() -> None:
    """One stage on all four nodes would be fastest: each would hold the whole model."""
    situation = replace(
        CALM,
        layer_costs=(3.0, 3.0, 3.0, 1.0),
        layer_parameters=PARAMETERS,
        microbatches=8,
        pipelines=4,
        copies=1,
        seed_bytes_per_second=1e15,
        slowness={},
    )

    def with_memory(size: int) -> Situation:
        return replace(situation, budget=Budget(layers=LAYERS, told=dict.fromkeys(NODES, size)))

    before = place(("n0", "n1"), PARAMETERS, 2, copies=1, pipelines=4)
    free = propose(before, situation)
    assert free is not None
    assert len(free[0]) == 1
    bound = propose(before, with_memory(6 * GB))
    assert bound is not None
    assert len(bound[0]) == 2
    assert "4 replicas of 1 stage would be faster and does not fit: n" in bound[1]
    assert propose(before, with_memory(GB)) is None


def budget(**told: float) -> Budget:
    return Budget(layers=LAYERS, told={name: int(size * GB) for name, size in told.items()})


def test_a_copy_goes_where_it_fits_and_else_nowhere() -> None:
    stages = place(("n0", "n1"), PARAMETERS, 2, copies=1)
    copied, reasons = repair(stages, ("n0", "n1", "n2", "n3"), budget=budget(n2=1, n3=4))
    assert [[b.node for b in stage.standbys] for stage in copied] == [["n3"], ["n0"]]
    assert reasons[0] == "n3, a spare, is seeded as standby of stage 0"
    copied, reasons = repair(stages, ("n0", "n1", "n2"), budget=budget(n0=4, n1=4, n2=1))
    assert copied == stages
    assert reasons == [
        "no node has memory for another copy of stage 0: n2 would need 3.20 GB and has 1.00 GB",
        "no node has memory for another copy of stage 1: n2 would need 3.20 GB and has 1.00 GB",
    ]


def test_standbys_beside_an_accelerator_take_none_of_its_memory() -> None:
    stages = place(("n0", "n1"), PARAMETERS, 2, copies=2)
    bound = Budget(layers=LAYERS, told={"n0": 4 * GB, "n1": 4 * GB, "n2": GB}, hosted=True)
    assert bound.asked(stages) == {"n0": 3.2 * GB, "n1": 3.2 * GB}
    assert bound.too_small(stages) == ()
    copied, _ = repair(place(("n0", "n1"), PARAMETERS, 2, copies=1), ("n0", "n1", "n2"), budget=bound)
    assert [[b.node for b in stage.standbys] for stage in copied] == [["n2"], ["n2"]]


def test_a_stage_of_which_every_copy_leaves_is_copied_though_it_is_tight() -> None:
    stages = place(("n0", "n1"), PARAMETERS, 2, copies=1)
    copied, _ = repair(stages, ("n1", "n2"), leaving=("n0",), budget=budget(n1=4, n2=1))
    assert [[b.node for b in stage.standbys] for stage in copied] == [["n2"], []]


def test_an_heir_is_the_copy_that_has_room_and_else_any_with_an_event() -> None:
    stages = place(("n0", "n1", "n2"), PARAMETERS, 3, copies=3)  # stages of 1, 1 and 2 layers
    boundaries = tuple(replace(layer, boundary=GB) for layer in LAYERS)
    bound = Budget(layers=boundaries, told={"n1": 9 * GB, "n2": 7 * GB})
    left, _ = promote(stages, ["n0"], budget=bound)
    assert left is not None
    assert left[0].owner == "n1", "n2 comes first in the chain"
    assert tight(bound, stages, left) == []
    small = replace(bound, told={"n2": 8 * GB})
    left, _ = promote(stages, ["n0", "n1"], budget=small)
    assert left is not None
    (record,) = tight(small, stages, left)
    assert record.text == "n2 takes work over though it would need 8.40 GB and has 8.00 GB: no copy has room"


def test_after_a_rollback_what_is_left_goes_on_without_standbys_that_do_not_fit() -> None:
    state = started(16 * GB, 16 * GB, 4 * GB, 4 * GB)
    for node in ("n0", "n1"):
        state, _ = advance(state, Left(node, 1), 1.0)
        validate(state)
    assert state.era > 0
    assert state.plan is not None
    assert sorted(owners(state.plan.stages)) == ["n2", "n3"]
    assert all(not stage.standbys for stage in state.plan.stages)
    assert "without standbys, since for 2 stages on 2 nodes n2 would need 6.40 GB and has 4.00 GB" in state.plan.reason


def test_the_smallest_limit_around_a_process_counts(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/machine/job\n3:cpu:/x\n")
    for group, limit in (("machine/job", "max"), ("machine", "4000")):
        folder = tmp_path / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
    assert list(memory_limits(tmp_path)) == [4000]
    (tmp_path / "proc/self/cgroup").write_text("7:memory:/docker/abc\n")
    (tmp_path / "sys/fs/cgroup/memory").mkdir()
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("5000\n")
    assert list(memory_limits(tmp_path)) == [5000], "a container sees its own group at the top"
    assert list(memory_limits(tmp_path / "nowhere")) == []


def test_a_part_of_a_processor_counts(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/machine/job\n")
    for group, quota in (("machine/job", "150000 100000"), ("machine", "max 100000")):
        folder = tmp_path / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(f"{quota}\n")
    assert list(processor_limits(tmp_path)) == [1.5]
    (tmp_path / "proc/self/cgroup").write_text("2:cpu,cpuacct:/docker/abc\n3:cpuset:/x\n")
    first = tmp_path / "sys/fs/cgroup/cpu"
    first.mkdir()
    (first / "cpu.cfs_quota_us").write_text("50000\n")
    (first / "cpu.cfs_period_us").write_text("100000\n")
    assert list(processor_limits(tmp_path)) == [0.5]
    (first / "cpu.cfs_quota_us").write_text("-1\n")
    assert list(processor_limits(tmp_path)) == []


def test_what_the_operator_says_counts() -> None:
    assert memory_bytes(CPU, 7) == 7
    assert memory_bytes(CPU) > 0


def job_of(optimizer: str, arguments: str) -> ModelSource:
    return ModelSource(parse_job(job_text(optimizer=optimizer, optimizer_args=arguments)))


@pytest.mark.parametrize(
    ("optimizer", "arguments", "of_a_matrix", "of_a_vector"),
    [
        ("torch.optim:AdamW", "lr = 0.01", 2, 2),
        ("torch.optim:AdamW", "lr = 0.01, amsgrad = true", 3, 3),
        ("torch.optim:SGD", "lr = 0.01", 0, 0),
        ("torch.optim:SGD", "lr = 0.01, momentum = 0.9", 1, 1),
        ("torch.optim:Adafactor", "lr = 0.01", 0, 1),  # it keeps factors of a matrix
    ],
)
def test_a_layer_takes_its_tensors_and_what_the_optimizer_keeps(
    optimizer: str, arguments: str, of_a_matrix: int, of_a_vector: int
) -> None:
    state, gradient = footprint(job_of(optimizer, arguments))[0]  # Linear(8, 8) and BatchNorm(8)
    matrix, vectors = 4 * 8 * 8, 4 * (8 + 8 + 8)
    buffers = 4 * (8 + 8) + 8  # and a count in 64 bits
    assert gradient == matrix + vectors
    assert state == matrix * (1 + of_a_matrix) + vectors * (1 + of_a_vector) + buffers


def test_a_frozen_layer_has_no_gradient_and_no_moments() -> None:
    job = parse_job(job_text(layers="tests.integration.wide_embedding:layers"))
    assert footprint(ModelSource(job))[0] == (4 * WORDS * WIDTH, 0)
