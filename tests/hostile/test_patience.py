"""Patience is one setting that reaches every detector; loading does not look like being stuck."""

from pathlib import Path

import pytest

from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.patience import Patience, checked, from_environment
from culm.pipeline.rpc.channel import channel_options, server_options
from tests.hostile.bad_nodes import WHERE, Later, Seen, bad_job, run


def test_a_stall_of_the_storage_beyond_the_patience_loses_nobody(tmp_path: Path) -> None:
    job, seen, flag = bad_job(80, 2, f"data.dataset={WHERE}:dataset"), Seen(), tmp_path / "stall"
    everywhere = {f"n{i}": {"CULM_STALL": str(flag)} for i in range(2)}
    outcome = run(job, 2, tmp_path / "run", everywhere, Later(flag, 10), seen, patience=2.5)
    assert not flag.exists(), "somebody stalled"
    assert outcome.sha256 == run_plain(job).sha256
    assert [text for text in seen.texts("lost") if "stuck" in text or "loading" in text] == []


def test_the_patience_reaches_every_channel_and_server() -> None:
    for options in (channel_options(Patience(30.0)), server_options(Patience(30.0))):
        told = dict(options)
        assert told["grpc.keepalive_time_ms"] == told["grpc.http2.ping_timeout_ms"] == 15_000
        assert told["grpc.keepalive_timeout_ms"] == 15_000


def test_the_job_says_the_patience_and_a_flag_overrides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    job = bad_job(1, 2, "resilience.patience=7")
    assert CoordinatorSettings(job=job).decisions().patience == Patience(7.0)
    assert CoordinatorSettings(job=job, patience_seconds=4.0).decisions().patience == Patience(4.0)
    monkeypatch.setenv("CULM_PATIENCE", "12")
    assert from_environment() == 12.0


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "-1", "0"])
def test_what_is_no_patience_is_refused(text: str) -> None:
    with pytest.raises(JobError, match="is not a patience"):
        checked(text, "--patience")
    with pytest.raises(JobError):
        bad_job(1, 2, f"resilience.patience={text or '[]'}")
