"""What was asked lately is not computed again, and nothing else is answered from memory."""

from culm.coordinator.remembering import remembering


def test_the_same_question_is_computed_once_even_with_arguments_that_have_no_hash() -> None:
    computed: list[dict[str, int]] = []

    @remembering(answers=1)
    def total(values: dict[str, int]) -> int:
        computed.append(values)
        return sum(values.values())

    assert [total({"a": 1}), total({"a": 1}), total({"a": 2}), total({"a": 2}), total({"a": 1})] == [1, 1, 2, 2, 1]
    assert computed == [{"a": 1}, {"a": 2}, {"a": 1}]


def test_as_many_answers_are_kept_as_asked_for_and_the_oldest_goes_first() -> None:
    computed: list[int] = []

    @remembering(answers=2)
    def same(value: int) -> int:
        computed.append(value)
        return value

    assert [same(value) for value in (1, 2, 1, 2, 3, 2, 1)] == [1, 2, 1, 2, 3, 2, 1]
    assert computed == [1, 2, 3, 1]
