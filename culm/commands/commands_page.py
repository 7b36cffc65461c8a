"""Makes docs/commands.md from the command line's parsers: ``python -m culm.commands.commands_page``."""

import argparse
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from culm.__main__ import all_parsers, make_parser
from culm.pipeline.made_page import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"

HEAD = """# The command line

Made from the parsers in `culm/commands/` by `python -m culm.commands.commands_page`: change it there.

`culm COMMAND --help` says the same, and `culm --version` which version it is. `culm completion SHELL` writes completion
for a shell. Exit codes are in [running.md](running.md#exit-codes-and-logs).
"""


def page() -> str:
    """The whole page."""
    with _no_settings():
        top, *commands = all_parsers(make_parser())
    lines = [HEAD, "| command | what it does |\n| --- | --- |"]
    lines.extend(f"| [`{name}`]({_anchor(name)}) | {_cell(what)} |" for name, what in _actions(top))
    lines.append("")
    for parser in commands:
        lines.append("\n".join(_section(parser)))
    return "\n".join(lines).rstrip() + "\n"


@contextmanager
def _no_settings() -> Iterator[None]:
    """Variables hold defaults of options: the page is to be the same everywhere."""
    settings = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("CULM_")}
    try:
        yield
    finally:
        os.environ.update(settings)


def _section(parser: argparse.ArgumentParser) -> Iterator[str]:
    level = "#" * len(parser.prog.split())
    positional = [action for action in parser._actions if not action.option_strings]
    options = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    yield f"{level} {parser.prog}\n"
    yield f"{_prose(parser.description or _help_of(parser))}\n"
    words = [*map(_placed, positional), *(["[options]"] if options else [])]
    yield f"```sh\n{' '.join([parser.prog, *words])}\n```\n"
    if positional or options:
        yield "| argument | what |\n| --- | --- |"
        for action in positional:
            yield f"| `{_cell(_placed(action))}` | {_cell(_meaning(parser, action))} |"
        for action in options:
            yield f"| {_spelling(action)} | {_cell(_meaning(parser, action))} |"
        yield ""
    if parser.epilog and parser.epilog != f"example: {parser.prog}":
        yield f"{_examples(parser.epilog)}\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Names and one-line helps of the commands below this one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield f"{parser.prog} {choice.dest}", choice.help or ""


def _help_of(parser: argparse.ArgumentParser) -> str:
    """What the parser above says of a command without a description, as a sentence."""
    said = dict(pair for each in all_parsers(make_parser()) for pair in _actions(each))[parser.prog]
    return f"{said[0].upper()}{said[1:]}."


def _anchor(name: str) -> str:
    return f"#{name.replace(' ', '-')}"


def _placed(action: argparse.Action) -> str:
    """A positional argument, as a usage line has it."""
    name = str(action.metavar or action.dest)
    if action.nargs == "?":
        return f"[{name}]"
    return f"[{name} ...]" if action.nargs == "*" else f"{name} ..." if action.nargs == "+" else name


def _spelling(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ", ".join(f"`{option}`" for option in action.option_strings)
    name = action.metavar or (",".join(map(str, action.choices)) if action.choices else action.dest.upper())
    words = " ".join(name) if isinstance(name, tuple) else str(name)
    return ", ".join(f"`{option} {_cell(words)}`" for option in action.option_strings)


def _meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Its help, and what argparse itself would refuse. Of an action: which there are."""
    if isinstance(action, argparse._SubParsersAction):
        return ", ".join(f"[`{name.split()[-1]}`]({_anchor(name)})" for name, _ in _actions(parser))
    said = " ".join((action.help or "").split())
    if "%(" in said or "%%" in said:
        said = said % {**vars(action), "prog": parser.prog}
    needed = action.option_strings and action.required
    return f"{said} (required)" if needed else said + _others(parser, action)


def _others(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    for group in parser._mutually_exclusive_groups:
        others = [f"`{each.option_strings[0]}`" for each in group._group_actions if each is not action]
        if action in group._group_actions and others and all(each.option_strings for each in group._group_actions):
            return f" ({'either this or' if group.required else 'not beside'} {' or '.join(others)})"
    return ""


def _examples(epilog: str) -> str:
    """The lines after "example:" or "examples:" as a block, and what stands around them as text."""
    text, _, lines = epilog.partition("example")
    shown = "\n".join(line.strip() for line in lines.partition(":")[2].strip().splitlines())
    return f"{_prose(text)}\n\n```sh\n{shown}\n```".lstrip()


def _prose(text: str) -> str:
    """With links to the pages that it names."""
    linked = re.sub(r"\bdocs/(\w+\.md)", r"[\1](\1)", text.replace("``", "`"))
    return "\n".join(" ".join(line.split()) for line in linked.strip().splitlines())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    raise SystemExit(main(PAGE, page(), __spec__.name))
