"""Command lines that no command can use: one line that says what, where, and the mend; and nothing begins.

Each is refused in this process, where a new one would add nothing but the seconds that it takes to start.
"""

import shlex
from pathlib import Path

import pytest
import tomli_w

from culm.__main__ import MODULES, all_parsers, make_parser
from culm.pipeline.default_ports import COORDINATOR
from tests.hostile.bad_command_lines import CASES, GRAPH, REPLACED, VARIABLES
from tests.hostile.commands import ROOT, in_process
from tests.hostile.test_bad_jobs import job_with


def folder_with_files(folder: Path) -> Path:
    (folder / "job.toml").write_text(tomli_w.dumps(job_with({})))
    (folder / "graph.toml").write_text(GRAPH)
    (folder / "trace.csv").write_text("0,add,a\n0,add,b\n0,add,c\n3600000,remove,a\n")
    (folder / "binary").write_bytes(b"\xff\xfe\x00\x01" * 20)
    (folder / "text.gz").write_text("this is no gzip")
    return folder


def words_of(line: str) -> list[str]:
    return [REPLACED.get(word, word) for word in shlex.split(line)]


@pytest.mark.parametrize("name", CASES)
def test_a_bad_command_line_gets_one_line(name: str, tmp_path: Path) -> None:
    line, said = CASES[name]
    folder = folder_with_files(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    told = in_process(*words_of(line), folder=folder, CULM_HOME=str(tmp_path / "home")).line
    assert said in told
    assert "\x1b" not in told
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before, "it leaves nothing behind"


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_bad_variable_gets_one_line_that_names_it(variable: str, tmp_path: Path) -> None:
    text, line = VARIABLES[variable]
    folder = folder_with_files(tmp_path)
    assert variable in in_process(*words_of(line), folder=folder, **{variable: text}).line


def test_a_variable_that_is_empty_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CULM_COORDINATOR", "")
    monkeypatch.setenv("CULM_NODES", "")
    assert not make_parser(["status"]).parse_args(["status"]).coordinator, "main finds it"
    assert make_parser(["serve"]).parse_args(["stage"]).coordinator == COORDINATOR
    assert make_parser(["serve"]).parse_args(["coordinator"]).nodes == 0


def test_every_command_and_every_flag_is_tried() -> None:
    """A flag that takes a value is tried with a bad one, unless every text is a good one."""
    lines = " ".join(line for line, _ in CASES.values()) + " " + " ".join(line for _, line in VARIABLES.values())
    for command in MODULES:
        assert command in lines, command
    any_text = {"--region", "--provider", "--model", "--spill-folder"}
    tried = {word.partition("=")[0] for line, _ in CASES.values() for word in line.split()}
    for parser in all_parsers(make_parser()):
        for action in parser._actions:
            if action.nargs != 0 and action.option_strings and not any_text & set(action.option_strings):
                assert tried & set(action.option_strings), f"{parser.prog} {action.option_strings}"


def test_the_tables_are_as_long_as_the_trials_were() -> None:
    assert len(CASES) + len(VARIABLES) >= 120
    assert ROOT.joinpath("examples").is_dir()
