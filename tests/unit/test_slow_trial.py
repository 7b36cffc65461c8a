"""A trial that takes long says what it does; one that is quick says nothing."""

import re
import threading

from culm.terminal.slow_trial import told_while_slow


def test_what_takes_long_is_told_with_the_line_of_the_jobs_code() -> None:
    """A layer that blocked looked like a start that was slow, without end."""
    said: list[str] = []
    twice = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            twice.set()

    with told_while_slow("the job is tried", say, first=0.0, again=0.0):
        assert twice.wait(60)
    assert re.fullmatch(r"the job is tried for 0 s so far, in .*/test_slow_trial.py, line \d+; Ctrl-C ends it", said[0])


def test_what_is_quick_is_not_told() -> None:
    said: list[str] = []
    with told_while_slow("the job is tried", said.append):
        pass
    assert said == []
