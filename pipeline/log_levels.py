"""The levels of log lines, by the words for them; from the least on."""

from culm.protos import coordinator_pb2 as pb

LEVELS: "dict[str, pb.LogLevel.ValueType]" = {
    "info": pb.LOG_LEVEL_INFO,
    "warning": pb.LOG_LEVEL_WARNING,
    "error": pb.LOG_LEVEL_ERROR,
    "critical": pb.LOG_LEVEL_CRITICAL,
}
_WORDS = {level: word for word, level in LEVELS.items()}


def word_of(level: int) -> str:
    """One that a later version knows counts as the least."""
    return _WORDS.get(level, "info")  # type: ignore[call-overload, no-any-return]
