"""``culm plan --on ray`` on a real Ray: the same figures as with processes of this machine."""

import importlib.util
import tempfile
from pathlib import Path

import pytest

from culm.engines.spread import RAY, spread
from culm.pipeline.errors import JobError
from tests.engines.example import culm
from tests.engines.ray_cluster import ray_cluster

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: culm[ray]")
PLAN = ["plan", "examples/digits_mlp.toml", "--nodes", "3-4", "--prices", "0.91", "--hazard", "0.5", "--seeds", "6"]


def test_where_no_head_listens_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(JobError, match=r"no head of Ray listens at 127\.0\.0\.1:1 \(Connection refused\)"), spread(RAY):
        pass


def square(number: int) -> int:
    return number**2


def test_a_plan_over_ray_is_the_plan_over_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as name, ray_cluster(Path(name), 1) as ray:
        environment = {**ray.environment, "RAY_ADDRESS": ray.address}
        profile = ["--profile", str(tmp_path / "profile.json")]
        culm("profile", "examples/digits_mlp.toml", "--out", profile[1], environment=environment)
        here = culm(*PLAN, *profile, "--json", environment=environment)
        assert culm(*PLAN, *profile, "--json", "--on", "ray", environment=environment) == here
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        with spread(RAY, chunk=3) as each:
            assert list(each(square, range(10))) == [number**2 for number in range(10)]
            with pytest.raises(ZeroDivisionError):
                list(each((1).__floordiv__, [1, 0]))
