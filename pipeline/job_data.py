"""What a script gives as a job's values, as the text of a job file gives it again."""

# Nodes get a job as text. What the text would change, such as a tuple or a number of numpy's, would be one thing to the
# script, which tries the job out and compares, and another thing to the nodes.

from collections.abc import Mapping
from datetime import date, time
from typing import Any

from culm.pipeline.errors import JobError


def as_data(sections: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Mappings as dicts, sequences as lists, numbers and texts as Python's own. Raises JobError for what TOML lacks.

    A section or a key that is None is left out.
    """
    return {name: _section(value, f"{where}, {name}") for name, value in sections.items() if value is not None}


def _section(section: Any, where: str) -> Any:
    if isinstance(section, Mapping):
        section = {key: value for key, value in section.items() if value is not None}
    return _as_data(section, where)


def _as_data(value: Any, where: str) -> Any:
    match value:
        case bool() | date() | time():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str.__str__(value)  # an enum's own str has its name
        case Mapping():
            if odd := [key for key in value if not isinstance(key, str)]:
                raise JobError(f"its key {odd[0]!r} is no text", where, "the keys of a job file are texts")
            return {key: _as_data(each, f"{where}.{key}") for key, each in value.items()}
        case list() | tuple():
            return [_as_data(each, f"{where}[{place}]") for place, each in enumerate(value)]
        case None:
            raise JobError("it is None, which a job file cannot say", where, "leave it out")
    what = f"it is a {type(value).__name__}, which a job file cannot hold"
    mend = "give numbers, texts, lists and dicts; what else there is to be, a function or a class of yours makes"
    raise JobError(what, where, mend)
