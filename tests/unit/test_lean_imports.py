"""A service starts without what only others need, and what only asks or decides answers at once."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from culm.__main__ import NOT_IN_ALL_IMAGES

WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None  # importing it raises ImportError
from culm.__main__ import main
sys.exit(main(sys.argv[2:]))
"""
TORCH = "torch,numpy,safetensors"


@pytest.mark.parametrize(
    ("without", "words"),
    [
        (TORCH, ("--help",)),
        (TORCH, ("coordinator", "--help")),
        (f"{TORCH},redis", ("status", "--help")),
        (f"{TORCH},redis", ("events", "--help")),
        (f"{TORCH},redis", ("trace", "--help")),
        (f"{TORCH},redis,streamlit", ("top", "--help")),
        (f"{TORCH},redis,streamlit", ("ui", "--help")),
        (f"{TORCH},redis", ("cost", "--help")),
        ("torch,safetensors,redis,grpc", ("simulate", "--help")),
        ("redis", ("stage", "--help")),
    ],
)
def test_a_command_needs_no_more_than_it_uses(without: str, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", WITHOUT, without, *words]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "culm" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("weights", "--coordinator", "127.0.0.1:1"),
        ("verify", "examples/digits_mlp.toml"),
        ("profile", "examples/digits_mlp.toml"),
        ("tensor-worker", "--coordinator", "127.0.0.1:1"),
    ],
)
def test_a_command_without_what_it_needs_names_the_mend_in_one_line(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", WITHOUT, TORCH, *words]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert re.fullmatch(rf"culm {words[0]}: \w+ is not installed here: .*images.md.*", lines[0]), lines[0]


def test_what_an_image_lacks_is_what_the_lists_of_their_packages_say() -> None:
    lists = [Path(__file__).parents[2] / "deploy/docker" / f"{image}.txt" for image in ("coordinator", "stage", "ui")]
    coordinator, stage, ui = ({line for line in each.read_text().splitlines() if line[0] != "#"} for each in lists)
    not_in_all = (coordinator | stage | ui) - (coordinator & stage & ui) - {"streamlit"}  # culm ui asks for it itself
    modules = {name.replace("grpcio-reflection", "grpc_reflection") for name in not_in_all}
    assert sorted(modules) == sorted(NOT_IN_ALL_IMAGES)


@pytest.mark.parametrize(
    ("without", "module"),
    [
        (TORCH, "culm.coordinator.edges.service"),
        (f"{TORCH},redis", "culm.terminal.progress"),
        (f"{TORCH},redis,streamlit", "culm.terminal.top_picture"),
        ("torch,safetensors,redis", "culm.ui.screens.overview"),
        ("torch,safetensors,redis", "culm.ui.recorded"),
        ("torch,safetensors,redis", "culm.ui.screens.timetable"),
        ("redis,torch.distributed.pipelining,torch._dynamo", "culm.stage_server.service"),
        (f"{TORCH},redis,grpc", "culm.simulator.markets.advice"),
        ("redis", "culm.local.gathering"),
    ],
)
def test_a_service_needs_no_more_than_it_uses(without: str, module: str) -> None:
    names = without.split(",")
    code = f"import sys; sys.modules.update(dict.fromkeys({names!r})); import {module}"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
