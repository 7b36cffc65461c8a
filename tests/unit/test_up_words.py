"""What ``culm up`` says at its end."""

from culm.commands.up import in_words
from culm.local.clusters import Record


def test_it_says_that_nothing_is_saved_before_culm_down_says_what_is_lost() -> None:
    record = Record(name="gpt", address="127.0.0.1:7070")
    said = in_words(record, ui_wanted=False, is_saved=False)
    assert "saved:       nothing: the job has no [checkpoint] section" in said
    assert "saved:" not in in_words(record, ui_wanted=False, is_saved=True)
