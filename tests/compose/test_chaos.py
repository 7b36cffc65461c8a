"""Minutes of chaos in compose on a real engine, and the weights are those of a plain loop: ``make hostile``.

``CHAOS_MINUTES=60 make hostile`` is a long one. ``CHAOS_SEED=7`` makes the same choices again: the seed decides what is
done to whom, not what comes of it. ``CHAOS_WITHOUT=redis,freeze`` leaves actions out by words of their names. Every
action is printed with its time.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compose.chaos import Chaos
from tests.compose.engine import IMAGES, EngineError, Project, docker

HERE = Path(__file__).parent
MINUTES = float(os.environ.get("CHAOS_MINUTES") or 0)
SEED = int(os.environ.get("CHAOS_SEED") or time.time_ns() % 1_000_000)
STEP_SECONDS = 1.0  # of chaos.toml's job, undisturbed
DISTURBED = 0.7  # of the time in which steps are committed, at most about
BREATH = 8  # actions after which the run must show that it goes on
STEPS = 20 + 20 * round(MINUTES * 60 * DISTURBED / STEP_SECONDS / 20)  # the last one is a checkpoint's
SAFE = {str(stage): 0.0 for stage in range(4)}


@pytest.fixture
def cluster() -> Iterator[Project]:
    if not MINUTES:
        pytest.skip("CHAOS_MINUTES says for how long: make hostile")
    try:
        docker("image", "inspect", *IMAGES)
    except (EngineError, FileNotFoundError) as error:
        pytest.skip(f"no engine with the images: {error}")
    # Several may run at once: each is a project of its own, its dashboard at any port that is free.
    project = Project(f"culm-chaos-{SEED}", [HERE / "chaos.yml"], {"STEPS": str(STEPS), "CULM_UI_PORT": "0"})
    try:
        project.begin()
        yield project
    finally:
        project.down()


Log = dict[tuple[float, int], dict[str, Any]]


def of_log(events: list[dict[str, Any]]) -> Log:
    """By time and number: numbers begin again where Redis and all nodes have lost their memory at once."""
    return {(event["time"], event["sequence"]): event for event in events}


def repeated(events: Log) -> list[int]:
    """Steps that were committed though they had been, with no going back between.

    What is missing between two events may have been a going back: a coordinator that starts over an emptied Redis knows
    commits by their sum, and nothing else of the time before.
    """
    again: list[int] = []
    committed, before = -1, -1
    for at, number in sorted(events):
        event = events[at, number]
        if number != before + 1:
            committed = -1
        before = number
        match event["kind"]:
            case "rollback":
                committed = -1
            case "commit":
                step = int(event["step"])
                if step <= committed:
                    again.append(step)
                committed = step
            case _:
                pass
    return again


def went_on(status: dict[str, Any], past: int) -> bool:
    return bool(status["step"] >= past + 2 and status["exposure"] == SAFE)


def test_whatever_happens_to_the_containers_not_a_bit_changes(cluster: Project) -> None:
    print(f"\nCHAOS_SEED={SEED} CHAOS_MINUTES={MINUTES:g}: {STEPS} steps", flush=True)
    chaos = Chaos(
        project=cluster,
        seed=SEED,
        say=lambda line: print(line, flush=True),
        without=os.environ.get("CHAOS_WITHOUT", ""),
    )
    ends = time.monotonic() + MINUTES * 60
    told = cluster.until(lambda s: s["step"] >= 2)
    events: Log = {}
    try:
        while time.monotonic() < ends and told["phase"] != "done":
            for _ in range(BREATH):
                chaos.act()
                chaos.pause(0.0, 8.0)
            chaos.mend()
            done = cluster.until(lambda s: True)["phase"] == "done"
            chaos.make_good()
            assert done or not chaos.dismissed, "nodes ended, though nobody told them to"
            past = cluster.until(lambda s: bool(s["step"]))["step"]
            told = cluster.until(lambda s, past=past: s["phase"] == "done" or went_on(s, past))  # type: ignore[misc]
            print(f"         at step {told['step']}, generation {told['generation']}, era {told['era']}", flush=True)
            events |= of_log(cluster.events())
        cluster.until(lambda s: bool(s["phase"] == "done"))
        events |= of_log(cluster.events())
        assert not repeated(events)
        assert cluster.saved_weights(STEPS) == cluster.plain_weights(
            "/chaos.toml", [f"job.steps={STEPS}", "model.args.forward=0", "model.args.backward=0"]
        )
    except BaseException:
        print(cluster.compose("ps", "--all"))
        print(cluster.compose("logs", "--no-color", "--timestamps", "--tail", "300"))
        raise
    assert chaos.told
