"""What --kill takes."""

import pytest

from culm.kills import parse_kill
from pipeline.errors import JobError


def test_a_kill_names_node_step_and_instruction() -> None:
    kill = parse_kill("n1@20:2B1", 3, 50)
    assert (kill.node, kill.step) == ("n1", 20)


@pytest.mark.parametrize("text", ["n1", "n9@1", "n1@999", "n1@x", "@1", "n1@1:nonsense"])
def test_a_bad_one_is_refused(text: str) -> None:
    with pytest.raises(JobError, match="--kill"):
        parse_kill(text, 3, 50)
