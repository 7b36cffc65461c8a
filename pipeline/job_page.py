"""Makes docs/job.md from the job file's model: ``python -m culm.pipeline.job_page``."""

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic_core import PydanticUndefined

from culm.pipeline.job import Job
from culm.pipeline.job_sections import Arguments, Factory
from culm.pipeline.made_page import main

PAGE = Path(__file__).resolve().parents[1] / "docs" / "job.md"

HEAD = """# The job file

Made from `pipeline/job_sections.py` by `python -m culm.pipeline.job_page`: change it there.

A job is a TOML file: a section for each heading below, a key for each row. `[evaluate]`, `[checkpoint]`, `[track]` and
`[graph]` may be left out; in a section that is there, so has to be each key without a default. On the command line
`--set section.key=value` changes one. [examples/digits_mlp.toml](../examples/digits_mlp.toml) is a whole job.

What stands as `module:callable` is your code, named as in an import. `culm run` and the other commands find the module
beside the job file, in the current folder, on `PYTHONPATH`, or installed. A `culm stage` on another machine has no job
file beside it: there the module has to be in the current folder, on `PYTHONPATH`, or installed.

Code alone is looked for beside the job file. A relative path of data, a model, checkpoints or a tracker counts from the
folder in which the command is started.
"""

WORDS = {int: "integer", float: "number", bool: "true or false", str: "text"}


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for name, field in Job.model_fields.items():
        section = next(t for t in (field.annotation, *get_args(field.annotation)) if hasattr(t, "model_fields"))
        lines.append(f"## [{name}]\n")
        lines.append(" ".join((section.__doc__ or "").replace("``", "`").split()) + "\n")
        lines.append("| key | type | what | default |\n| --- | --- | --- | --- |")
        lines.append("\n".join(_rows(section)) + "\n")
    return "\n".join(lines).rstrip() + "\n"


def _rows(section: Any) -> Iterator[str]:
    hints = get_type_hints(section, include_extras=True)
    for name, field in section.model_fields.items():
        meaning = next(said for said in reversed(field.metadata) if isinstance(said, str))
        default = "" if field.default is PydanticUndefined else _value(field.default)
        yield f"| `{name}` | {_type(hints[name])} | {meaning} | {default} |"


def _value(default: Any) -> str:
    if default in (None, {}):
        return "none"
    return f"`{str(default).lower()}`" if isinstance(default, bool) else f"`{default}`"


def _type(hint: Any) -> str:
    """In words, with bounds where somebody may meet them."""
    if hint is Arguments:
        return "table"
    origin = get_origin(hint)
    if origin is dict:
        return "table"
    if origin in (Union, UnionType):
        return " or ".join(_type(each) for each in get_args(hint) if each is not type(None))
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in get_args(hint))
    if origin is not Annotated:
        return WORDS.get(hint, "text")
    kind, *known = get_args(hint)
    if get_args(Factory)[1] in known:
        return "`module:callable`"
    least = [x for each in known for x in (getattr(each, "metadata", ()) or (each,)) if hasattr(x, "ge")]
    return f"{_type(kind)}, {least[0].ge:g} or more" if least and kind in (int, float) else _type(kind)


if __name__ == "__main__":
    raise SystemExit(main(PAGE, page(), __spec__.name))
