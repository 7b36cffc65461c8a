"""What stands in ``deploy/`` and in ``docker-compose.yml``, as tests read it."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
FILES = sorted(p for p in DEPLOY.rglob("*") if p.is_file())


def name_of(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """What a compose service mounts, by where; ``:ro`` stays."""
    found: dict[str, str] = {}
    for volume in service.get("volumes", []):
        source, _, target = volume.partition(":")
        found[target] = source
    return found


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def objects(kind: str) -> list[dict[str, Any]]:
    """Of the cluster, by kind."""
    return [d for path in sorted(KUBERNETES.glob("*.yaml")) for d in documents(path) if d["kind"] == kind]


def pods() -> dict[str, dict[str, Any]]:
    """The pod templates by the name of what makes them."""
    return {d["metadata"]["name"]: d["spec"]["template"] for k in ("Deployment", "StatefulSet") for d in objects(k)}


def container(name: str) -> dict[str, Any]:
    (only,) = pods()[name]["spec"]["containers"]
    found: dict[str, Any] = only
    return found
