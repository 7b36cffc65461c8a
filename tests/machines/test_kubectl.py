"""``deploy/kubernetes`` as kubectl itself reads it."""

import shutil
import subprocess

import pytest

from tests.unit.deployed import KUBERNETES


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_kubectl_makes_of_the_page_what_it_applies() -> None:
    words = ["kubectl", "kustomize", str(KUBERNETES)]
    made = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    assert made.count("\nkind: Deployment\n") == 3
    assert "replicas: 5\n" in made
