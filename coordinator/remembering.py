"""A pure function that is asked the same again and again, and computes only what was not asked lately."""

# ``functools.lru_cache`` asks for arguments with a hash. What decisions depend on holds mappings, which have none; to
# compare them with those of the last few calls is cheap where most of it is the same object.

from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


def remembering(answers: int) -> Callable[[Callable[Asked, Answer]], Callable[Asked, Answer]]:
    """Keeps the last so many answers of a pure function, whose arguments nobody changes afterwards."""

    def of_function(function: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
        kept: deque[tuple[object, Answer]] = deque(maxlen=answers)

        @wraps(function)
        def ask(*args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
            asked = args, kwargs
            for before, answer in kept:
                if before == asked:
                    return answer
            answer = function(*args, **kwargs)
            kept.appendleft((asked, answer))
            return answer

        return ask

    return of_function
