"""Which task is whose: nothing is lost, whatever workers do."""

from culm.stage_server.tensor_work.board import LATE, LEAST_SECONDS, UNKNOWN_SECONDS, Board

KIND = ("layer 0", "apply_vertex", False)


def with_workers(count: int) -> Board:
    board = Board()
    board.workers.update(dict.fromkeys(range(count)))
    return board


def test_tasks_are_given_out_in_the_order_in_which_they_came() -> None:
    board = with_workers(2)
    for number in (0, 1, 2):
        board.put(number, KIND, 0.0)
    assert [board.take(0, 0.0), board.take(1, 0.0), board.take(0, 0.0), board.take(1, 0.0)] == [0, 1, 2, None]


def test_the_first_answer_counts() -> None:
    board = with_workers(2)
    board.put(0, KIND, 0.0)
    assert board.take(0, 0.0) == 0
    late = UNKNOWN_SECONDS + 0.1
    assert board.take(1, late) == 0, "it is late, so another worker gets it as well"
    assert board.answered(0, 1, late + 0.1)
    assert not board.answered(0, 0, late + 0.2)
    assert board.relaunched == 1


def test_what_a_lost_worker_had_waits_in_its_old_place() -> None:
    board = with_workers(2)
    for number in (0, 1):
        board.put(number, KIND, 0.0)
    assert board.take(0, 0.0) == 0
    board.given_up(0)
    assert board.take(1, 0.1) == 0


def test_late_is_told_by_what_such_tasks_take() -> None:
    board = with_workers(2)
    for number in range(5):
        board.put(number, KIND, 0.0)
        assert board.take(0, 0.0) == number
        assert board.answered(number, 0, 1.0)
    assert board.usual(KIND) == 1.0
    board.put(9, KIND, 10.0)
    assert board.take(0, 10.0) == 9
    assert board.take(1, 10.0 + LATE - 0.1) is None
    assert board.take(1, 10.0 + LATE + 0.1) == 9


def test_a_server_without_workers_does_all_itself() -> None:
    board = Board()
    board.put(0, KIND, 0.0)
    assert board.is_left(0, 0.0)
    board.workers[0] = None
    assert not board.is_left(0, 0.0)
    board.given_up(0)
    assert board.is_left(0, 0.0)


def test_workers_that_hang_leave_the_rest_to_the_server() -> None:
    board = with_workers(2)
    for number in (0, 1, 2):
        board.put(number, KIND, 0.0)
    assert (board.take(0, 0.0), board.take(1, 0.0)) == (0, 1)
    assert not board.is_left(2, LEAST_SECONDS), "a worker may still come back"
    late = UNKNOWN_SECONDS + 0.1
    assert all(board.is_left(number, late) for number in (0, 1, 2))
    assert board.answered(0, 0, late)
    assert not board.is_left(2, late), "one of them answers again"


def test_what_is_late_even_for_a_second_worker_is_left_to_the_server() -> None:
    board = with_workers(3)
    board.put(0, KIND, 0.0)
    assert board.take(0, 0.0) == 0
    assert board.take(1, UNKNOWN_SECONDS + 1.0) == 0
    assert not board.is_left(0, UNKNOWN_SECONDS + 2.0)
    assert board.is_left(0, 2 * UNKNOWN_SECONDS + 2.0)


def test_a_stream_that_asks_ahead_gets_what_remains_for_no_idle_worker() -> None:
    board = with_workers(2)
    board.ahead.add(2)
    for number in (0, 1):
        board.put(number, KIND, 0.0)
    assert board.take(2, 0.0) is None, "two tasks, and two workers that have nothing to do"
    assert board.take(0, 0.0) == 0
    assert board.take(2, 0.0) is None
    board.put(2, KIND, 0.1)
    assert board.take(2, 0.1) == 1, "one remains for the other worker"
    assert board.take(1, 0.1) == 2
    assert board.answered(1, 2, 0.2)
    assert set(board.workers) == {0, 1}


def test_what_a_lost_stream_had_waits_again() -> None:
    board = with_workers(1)
    board.ahead.add(1)
    for number in (0, 1):
        board.put(number, KIND, 0.0)
    assert [board.take(0, 0.0), board.take(1, 0.0)] == [0, 1]
    board.given_up(1)
    assert board.answered(0, 0, 1.0)
    assert board.take(0, 1.0) == 1


def test_workers_that_hang_leave_the_work_though_they_could_ask_ahead() -> None:
    board = with_workers(1)
    board.ahead.add(1)
    board.put(0, KIND, 0.0)
    assert board.take(0, 0.0) == 0
    late = UNKNOWN_SECONDS + 0.1
    board.put(1, KIND, late)
    assert board.is_left(1, late)


def test_tasks_wait_until_they_are_taken() -> None:
    board = with_workers(1)
    for number in (0, 1):
        board.put(number, KIND, 0.0)
    assert board.take(0, 1.0) == 0
    board.withdraw(1, 3.0)
    assert board.waited_seconds == 4.0
