"""What a receiver answers: acknowledgements wait for others, all else takes them along at once."""

import pytest

from culm.pipeline.keys import Key, Kind
from culm.pipeline.messages import key_from_proto
from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.streams.answers import MANY, Answer, Answers, SenderOpened

KEYS = [Key(0, 0, 0, Kind.ACTIVATION, 0, m) for m in range(MANY)]
SYNCED = stage_pb2.Synced(term=1, generation=2)
SLOT = tensor_pb2.Slot(number=3, size=4)


def acknowledged(response: stage_pb2.DeliverResponse) -> list[Key]:
    return [key_from_proto(key) for key in response.acknowledged]


@pytest.mark.parametrize("last", [SYNCED, SLOT, SenderOpened()])
def test_acknowledgements_go_along_with_what_does_not_wait(last: Answer) -> None:
    answers = Answers(1)
    for answer in (*KEYS[:2], last):
        answers.put(answer)
    response = next(answers.for_stream())
    assert acknowledged(response) == KEYS[:2]
    assert (response.HasField("synced"), response.opened, list(response.free_slots)) == (
        last is SYNCED,
        isinstance(last, SenderOpened),
        [3] if last is SLOT else [],
    )


def test_an_acknowledgement_alone_goes_after_a_while_and_what_is_left_goes_before_the_end() -> None:
    answers = Answers(1)
    stream = answers.for_stream()
    answers.put(KEYS[0])
    assert acknowledged(next(stream)) == KEYS[:1]
    answers.put(KEYS[1])
    answers.end()
    assert [acknowledged(response) for response in stream] == [KEYS[1:2]]


def test_many_acknowledgements_wait_no_longer() -> None:
    answers = Answers(1)
    for key in KEYS:
        answers.put(key)
    assert acknowledged(next(answers.for_stream())) == KEYS


@pytest.mark.parametrize("orders", [[(1, 6), (1, 5)], [(1, 5), (1, 6)], [(2, 1), (1, 9)]])
def test_of_several_answers_to_hellos_the_newest_plans_goes(orders: list[tuple[int, int]]) -> None:
    """An older stream of the node is read late, and its Hello answered last."""
    answers = Answers(1)
    for term, generation in orders:
        answers.put(stage_pb2.Synced(term=term, generation=generation))
    synced = next(answers.for_stream()).synced
    assert (synced.term, synced.generation) == max(orders)


def test_of_two_answers_under_one_plan_the_later_goes() -> None:
    answers = Answers(1)
    for committed in (3, 4):
        answers.put(stage_pb2.Synced(term=1, generation=6, committed=committed))
    assert next(answers.for_stream()).synced.committed == 4
