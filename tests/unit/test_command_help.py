"""Every command's help ends with examples, and each of them is a command line that the parser takes."""

import argparse
import re
import shlex
import shutil
import subprocess

import pytest

from culm.__main__ import all_parsers, make_parser
from culm.commands.completion import SHELLS, script

EXAMPLE = re.compile(r"^(?:example: |  )(culm .*)$", re.MULTILINE)
PARSERS = {parser.prog: parser for parser in all_parsers(make_parser())}


def examples(parser: argparse.ArgumentParser) -> list[str]:
    return EXAMPLE.findall(parser.epilog or "")


@pytest.mark.parametrize("name", PARSERS)
def test_help_ends_with_examples_that_parse(name: str) -> None:
    parser = PARSERS[name]
    lines = examples(parser)
    assert lines, f"{name} --help shows no example"
    assert parser.format_help().rstrip().endswith(lines[-1]), "the examples are not wrapped, and come last"
    for line in lines:
        words = shlex.split(line.split("    ")[0].split(" > ")[0])
        assert words[0] == "culm"
        arguments = make_parser().parse_args(words[1:])
        assert callable(arguments.command)
        assert name == "culm" or line.startswith(name), f"the example of {name} shows another command: {line}"


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_every_command_and_option(shell: str) -> None:
    text = script(shell)
    for parser in PARSERS.values():
        assert parser.prog.split()[-1] in text
        for action in parser._actions:
            for option in action.option_strings:
                assert option.lstrip("-") in text, f"{parser.prog} {option}"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_takes_the_completion() -> None:
    asked = 'COMP_WORDS=(culm do) COMP_CWORD=1; _shtab_culm 2>/dev/null; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script('bash')}\n{asked}"], capture_output=True, text=True, check=True
    )
    assert {"doctor", "down"} <= set(done.stdout.split())
