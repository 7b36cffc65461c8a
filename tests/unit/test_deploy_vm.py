"""``deploy/vm``: what cloud-init and systemd are told."""

import re
import shutil
import subprocess
from base64 import b64decode
from pathlib import Path

import pytest
import yaml

from tests.metadata_server import MetadataServer
from tests.unit.deployed import DEPLOY, ROOT, documents


@pytest.mark.parametrize("service", ["stage", "coordinator"])
def test_cloud_init_carries_the_very_unit(service: str) -> None:
    path = DEPLOY / "vm" / f"cloud-init-{service}.yaml"
    assert path.read_text().startswith("#cloud-config\n")
    (config,) = documents(path)
    files = {f["path"]: f["content"] for f in config["write_files"]}
    unit = f"culm-{service}.service"
    assert files[f"/etc/systemd/system/{unit}"] == (DEPLOY / "vm" / unit).read_text()
    if service == "coordinator":
        assert files["/etc/culm/job.toml"] == (ROOT / "examples" / "digits_mlp.toml").read_text()


@pytest.mark.parametrize("service", ["stage", "coordinator"])
def test_cloud_init_takes_certificates_as_its_page_has_them_pasted(service: str, tmp_path: Path) -> None:
    """A PEM file's own lines, pasted where the first one goes, are no YAML."""
    pem = tmp_path / "a.pem"
    pem.write_text(f"-----BEGIN CERTIFICATE-----\n{'QUJD' * 16}\n{'REVG' * 16}\n-----END CERTIFICATE-----\n")
    text = (DEPLOY / "vm" / f"cloud-init-{service}.yaml").read_text()
    assert "base64 < FILE | tr -d '\\n'" in text
    pasted = subprocess.run(["sh", "-c", f"base64 < {pem} | tr -d '\\n'"], capture_output=True, text=True, check=True)
    config = yaml.safe_load(text.replace("PASTE IT HERE", pasted.stdout))
    secrets = [f for f in config["write_files"] if f["path"].startswith("/etc/culm/tls/")]
    assert [f["path"].rpartition("/")[2] for f in secrets] == ["ca.crt", "tls.crt", "tls.key"]
    for file in secrets:
        assert file["encoding"] == "b64"
        assert b64decode(file["content"], validate=True) == pem.read_bytes()


@pytest.mark.parametrize("service", ["stage", "coordinator"])
def test_a_unit_that_waits_for_cloud_init_is_in_no_cycle_at_the_next_boot(service: str) -> None:
    """``cloud-final`` starts after ``multi-user.target``, which comes after what it wants unless that says otherwise.

    systemd breaks a cycle by not starting one of its units.
    """
    unit = (DEPLOY / "vm" / f"culm-{service}.service").read_text()
    (after,) = re.findall(r"^After=(.*)$", unit, re.MULTILINE)
    (wanted_by,) = re.findall(r"^WantedBy=(.*)$", unit, re.MULTILINE)
    assert {"cloud-final.service", wanted_by} <= set(after.split())


def test_a_balanced_group_moves_no_machines_by_itself() -> None:
    """Google Cloud refuses the shape BALANCED otherwise, and a machine that it moves is a lost node."""
    text = (DEPLOY / "vm" / "README.md").read_text()
    assert "--target-distribution-shape BALANCED --instance-redistribution-type NONE\n" in text


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl, which the machine gets")
@pytest.mark.parametrize(
    ("others", "zone"),
    [((), "us-central1-f"), (("computeMetadata",), "us-east-1b"), (("computeMetadata", "latest"), "westeurope-2")],
    ids=["gcp", "aws", "azure"],
)
def test_a_machine_asks_its_cloud_where_it_is(others: tuple[str, ...], zone: str) -> None:
    """``others``: first words of the paths that another cloud's metadata service does not know."""
    (config,) = documents(DEPLOY / "vm" / "cloud-init-stage.yaml")
    (script,) = (f["content"] for f in config["write_files"] if f["path"] == "/usr/local/bin/culm-where")
    for path in others:
        script = script.replace(f"$at/{path}/", "$at/nowhere/")
    server = MetadataServer()
    try:
        script = script.replace("http://169.254.169.254", server.url)
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    finally:
        server.close()
    told = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert told["CULM_ZONE"] == zone
    assert re.fullmatch(r"[0-9.]+:7071", told["CULM_ADVERTISE"])
    assert told["CULM_NAME"]
