"""An obstacle is said when it is met, and now and then as long as it lasts."""

import logging

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from culm.coordinator.edges.obstacles import AGAIN_SECONDS, Obstacles
from culm.coordinator.edges.redis_store import _obstacle


def test_an_obstacle_that_lasts_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    met = [(0.0, "a"), (0.2, "a"), (1.0, "b"), (1.2, "b"), (1.0 + AGAIN_SECONDS, "b"), (1.2 + AGAIN_SECONDS, "b")]
    times = iter([at for at, _ in met])
    obstacles = Obstacles(logging.getLogger("culm.test"), lambda: next(times))
    for _, obstacle in met:
        obstacles.say(obstacle)
    assert caplog.messages == ["a", "b", "b"]


def test_a_redis_that_does_not_answer_is_told_with_the_mend() -> None:
    said = _obstacle(RedisConnectionError("Error 111 connecting to 127.0.0.1:6379. Connection refused."))
    assert said == (
        "waiting for Redis: Error 111 connecting to 127.0.0.1:6379. Connection refused.; start it, or correct --redis"
    )
