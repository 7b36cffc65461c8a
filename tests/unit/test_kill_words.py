"""What --kill takes."""

from pathlib import Path

import pytest

from culm.local.kills import missed_in_words, parse_kill, refuse_past
from culm.pipeline.errors import JobError
from culm.pipeline.job import load_job, with_values

JOB = load_job(Path(__file__).parents[2] / "examples" / "digits_mlp.toml")


@pytest.mark.parametrize("text", ["1@3", "node-1@3:send", "n1@3:send:0F3", "n1@3:ready:2", "n1@3:commit", "n2@3:2B3"])
def test_what_a_run_comes_to_can_be_its_end(text: str) -> None:
    assert parse_kill(text, 3, JOB).step == 3


def test_an_evaluation_has_instructions_in_its_steps_alone() -> None:
    asked = {"dataset": JOB.data.dataset, "every": 10, "samples": 40}  # three microbatches
    job = with_values(JOB, {f"evaluate.{key}": value for key, value in asked.items()})
    assert [parse_kill(f"n1@{at}", 3, job).step for at in ("20:1E2", "60:1E0", "60:ready")] == [20, 60, 60]
    for at in ("20:1E3", "21:1E0", "60:1B0", "61"):
        with pytest.raises(JobError, match="--kill"):
            parse_kill(f"n1@{at}", 3, job)


def test_a_kill_names_node_step_and_instruction() -> None:
    kill = parse_kill("n1@20:2B1", 3, JOB)
    assert (kill.node, kill.step) == ("n1", 20)


@pytest.mark.parametrize(
    "text",
    [
        "n1",
        "n9@1",
        "n1@999",
        "n1@x",
        "@1",
        "n1@1:",
        "n1@1:nonsense",
        "n1@1:3B0",  # a stage that does not exist
        "n1@1:2B4",  # a microbatch too many
        "n1@1:1W0",  # which this schedule has not
        "n1@1:send:2B4",
        "n1@1:ready:3",
        "n1@1:commit:1",
        "n1@-1",
        "n1@1:2B1 ; rm -rf",
    ],
)
def test_a_bad_one_is_refused(text: str) -> None:
    with pytest.raises(JobError, match="--kill"):
        parse_kill(text, 3, JOB)


def test_a_kill_before_the_first_step_of_a_resumed_run_is_refused() -> None:
    kills = [parse_kill("n1@20:2B1", 3, JOB), parse_kill("n0@3:ready", 3, JOB)]
    refuse_past(kills, 3)
    with pytest.raises(JobError, match=r"--kill n0@3:ready.* begins with step 4, .* never comes to step 3"):
        refuse_past(kills, 4)


def test_kills_that_did_not_come_are_told_of() -> None:
    """A run that no kill had reached ended as if it had survived them."""
    kills = [parse_kill(text, 3, JOB) for text in ("n1@3", "n1@9:1B1", "n2@5:0F3")]
    assert missed_in_words(kills, [("n1", 1.0), ("n2", 2.0), ("n1", 3.0)]) == ""
    assert missed_in_words(kills, [("n1", 1.0), ("n0", 2.0)]).endswith("was lost: n1 1 of 2, n2 0 of 1")
    assert missed_in_words([], [("n1", 1.0)]) == ""
