"""The pages that are made from code say what it says."""

from types import ModuleType

import pytest

from culm.commands import commands_page
from culm.pipeline import job_page
from culm.pipeline.money import events_page
from culm.pipeline.money.codec import Unknown
from culm.pipeline.money.kinds import GROUPS, KINDS, Event


@pytest.mark.parametrize("made", [commands_page, events_page, job_page])
def test_the_page_is_up_to_date(made: ModuleType) -> None:
    assert made.PAGE.read_text() == made.page(), f"run python -m {made.__name__}"


def test_every_kind_stands_in_one_group_and_has_a_name_of_its_own() -> None:
    listed = [kind for group in GROUPS.values() for kind in group]
    of_the_log = {kind.kind for kind in Event.__subclasses__() if kind.__module__.startswith("culm.pipeline.money.")}
    assert {kind.kind for kind in listed} == of_the_log - {Unknown.kind}
    assert len(KINDS) == len(listed)
