"""URLs with passwords, keys and signatures are never shown, logged or kept whole."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import tomli_w

from culm.pipeline.checkpoints import storage
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, job_to_toml, parse_job
from culm.pipeline.log_lines import JsonLines, PlainLines
from culm.pipeline.text import refuse_secrets, shown_url, told, without_secrets
from tests.hostile.commands import environment, in_process
from tests.hostile.test_bad_jobs import job_with

SECRET = "hunter2"
WITH_SECRETS = [
    (f"redis://:{SECRET}@host:6379/0", "redis://:***@host:6379/0"),
    (f"rediss://me:{SECRET}@host/0", "rediss://me:***@host/0"),
    (f"https://me:{SECRET}@host/path", "https://me:***@host/path"),
    (f"https://{SECRET}@host/path", "https://***@host/path"),
    (f"s3://KEY:{SECRET}@bucket/path", "s3://KEY:***@bucket/path"),
    (f"ftp://me:{SECRET}@[::1]:21/x", "ftp://me:***@[::1]:21/x"),
    (f"ftp://me:pw@{SECRET}@host/x", "ftp://me:***@host/x"),
    (f"ftp://me:a/{SECRET}@host/x", "ftp://***"),
    (f"simplecache::s3://KEY:{SECRET}@bucket/x", "simplecache::s3://KEY:***@bucket/x"),
    (f"https://host/x?X-Amz-Signature={SECRET}&X-Amz-Date=1", "https://host/x?X-Amz-Signature=***&X-Amz-Date=1"),
    (f"https://host/x?X-Amz-Security-Token={SECRET}", "https://host/x?X-Amz-Security-Token=***"),
    (f"https://host/x?X-Amz-Credential={SECRET}/x", "https://host/x?X-Amz-Credential=***"),
    (f"https://a.blob.core.windows.net/c?sv=1&sig={SECRET}", "https://a.blob.core.windows.net/c?sv=1&sig=***"),
    (
        f"https://storage.googleapis.com/b?X-Goog-Signature={SECRET}",
        "https://storage.googleapis.com/b?X-Goog-Signature=***",
    ),
    (f"https://host/x?access_token={SECRET}", "https://host/x?access_token=***"),
    (f"https://host/x?API-KEY={SECRET}", "https://host/x?API-KEY=***"),
    (f"https://host/x?pass%77ord={SECRET}", "https://host/x?pass%77ord=***"),
    (f"https://host/x#token={SECRET}", "https://host/x#token=***"),
]
WITHOUT = [
    *(
        "file:///tmp/culm",
        "/tmp/culm",
        "culm",
        "s3://bucket/path",
        "memory://x",
        "redis://127.0.0.1:6379/0",
        "",
        "a?b=c",
    ),
    *(
        "abfs://container@account.dfs.core.windows.net/x",
        "file:///home/me@work/x",
        "unix:///run/redis.sock",
        "::",
        "://",
    ),
    "https://host/x?step=3&page=4",
]


@pytest.mark.parametrize(("url", "shown"), WITH_SECRETS)
def test_a_url_is_shown_without_its_secret(url: str, shown: str) -> None:
    assert SECRET not in shown
    assert shown_url(url) == shown
    assert shown_url(shown) == shown
    assert SECRET not in without_secrets(f"cannot reach {url}: refused ('{url}')")
    assert SECRET not in told(f"<{url}>")


@pytest.mark.parametrize("url", WITHOUT)
def test_a_url_without_secrets_is_shown_as_it_is(url: str) -> None:
    assert shown_url(url) == url
    assert refuse_secrets(url, "--resume") == url


def job_saving_to(url: str) -> Job:
    return parse_job(tomli_w.dumps(job_with({"checkpoint.url": url, "checkpoint.every": 2})))


@pytest.mark.parametrize(("url", "shown"), WITH_SECRETS)
def test_no_job_keeps_a_secret(url: str, shown: str) -> None:
    """A job goes to every node, into the run's folder, and into what is kept of a run."""
    with pytest.raises(JobError) as refused:
        job_saving_to(url)
    assert SECRET not in str(refused.value)
    assert "environment" in str(refused.value)


def test_a_variable_stands_for_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is looked up where the URL is used, and nowhere else."""
    monkeypatch.setenv("CULM_TEST_PLACE", str(tmp_path / SECRET))
    job = job_saving_to("file://${CULM_TEST_PLACE}/kept")
    assert SECRET not in job_to_toml(job)
    assert job.checkpoint is not None
    storage.put(job.checkpoint.url, "file", [b"data"])
    assert (tmp_path / SECRET / "kept" / "file").read_bytes() == b"data"
    monkeypatch.delenv("CULM_TEST_PLACE")
    with pytest.raises(JobError, match="the variable CULM_TEST_PLACE is not set"):
        storage.put(job.checkpoint.url, "file", [b"data"])


def test_a_storage_that_fails_tells_no_secret() -> None:
    with pytest.raises((OSError, JobError)) as failed:
        storage.digest(f"ftp://me:{SECRET}@127.0.0.1:1/x", "file")
    assert SECRET not in str(failed.value)


def test_a_log_line_is_one_line_and_tells_no_secret() -> None:
    record = logging.LogRecord("culm", logging.INFO, "", 0, "from %s\n\x1b[31mnext", (WITH_SECRETS[0][0],), None)
    assert PlainLines().format(record).endswith(" culm from redis://:***@host:6379/0 next")
    assert json.loads(JsonLines({}).format(record))["message"] == "from redis://:***@host:6379/0 next"


def test_the_text_of_an_exception_in_the_log_tells_no_secret() -> None:
    try:
        raise OSError(f"cannot reach {WITH_SECRETS[0][0]}")
    except OSError:
        record = logging.LogRecord("culm", logging.ERROR, "", 0, "it raised", (), sys.exc_info())
    assert SECRET not in PlainLines().format(record)
    line = json.loads(JsonLines({}).format(record))
    assert SECRET not in str(line)
    assert "OSError: cannot reach redis://:***@host" in line["exception"]


@pytest.mark.parametrize(
    "line",
    [
        f"coordinator --job job.toml --redis http://:{SECRET}@host",
        f"coordinator --job job.toml --redis redis://:{SECRET}@host:port",
        f"coordinator --job job.toml --resume ftp://me:{SECRET}@host/x",
        f"run job.toml --resume https://host/x?sig={SECRET}",
        f"run job.toml --set checkpoint.url=s3://a:{SECRET}@b --set checkpoint.every=2",
        f"checkpoint ls s3://a:{SECRET}@b",
        f"checkpoint export https://host/x?token={SECRET} --out w",
    ],
)
def test_a_refusal_tells_no_secret(line: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(tomli_w.dumps(job_with({})))
    done = in_process(*line.split(), folder=tmp_path)
    assert SECRET not in done.line + done.out


def test_ps_shows_no_password(tmp_path: Path) -> None:
    """Whoever gives a password on the command line is seen with it only until the coordinator has started."""
    (tmp_path / "job.toml").write_text(tomli_w.dumps(job_with({})))
    words = [
        "coordinator",
        "--job",
        "job.toml",
        "--listen",
        "127.0.0.1:0",
        "--redis",
        f"redis://:{SECRET}@127.0.0.1:9/0",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "culm", *words],
        cwd=tmp_path,
        env=environment(CULM_LOG="debug"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            first = process.stderr.readline()  # it says something once it cannot reach that Redis
            assert SECRET not in first
            assert SECRET not in " ".join(psutil.Process(process.pid).cmdline())
        finally:
            process.kill()
