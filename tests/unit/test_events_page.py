"""docs/events.md says what the kinds of events say, of each of them."""

from culm.pipeline.money.events_page import PAGE, page
from culm.pipeline.money.kinds import GROUPS, KINDS, Event


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m culm.pipeline.money.events_page"


def test_every_kind_stands_in_one_group_and_has_a_name_of_its_own() -> None:
    listed = [kind for group in GROUPS.values() for kind in group]
    of_the_log = {kind.kind for kind in Event.__subclasses__() if kind.__module__ == Event.__module__}
    assert {kind.kind for kind in listed} == of_the_log
    assert len(KINDS) == len(listed)
