"""What is missing on a machine: facts in, findings out, each with its mend. Does no I/O."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 6)
SOON = timedelta(days=14)
LITTLE_DISK = 2e9  # bytes: logs, Redis and a checkpoint of a small model
NO_DISK = 2e8
WRITTEN = datetime(2025, 1, 1)  # before this code: a clock that reads less is wrong


class Verdict(StrEnum):
    """How it stands with one thing."""

    OK = "ok"
    WARN = "warn"  # culm runs without it
    MISSING = "missing"  # culm does not run


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``culm doctor``. ``mend`` is empty when nothing is to be done."""

    name: str
    verdict: Verdict
    text: str
    mend: str = ""


def python(version: tuple[int, int], where: str) -> Finding:
    text = f"{version[0]}.{version[1]} at {where}"
    if version < OLDEST_PYTHON:
        return Finding("python", Verdict.MISSING, text, "install Python 3.11 or later and make a new .venv with it")
    return Finding("python", Verdict.OK, text)


def package(name: str, version: str, why: str, oldest: tuple[int, int] = (0, 0)) -> Finding:
    """A package that Culm needs. ``version`` is empty if it cannot be imported, and ``why`` says the reason."""
    mend = f"pip install '{name}>={oldest[0]}.{oldest[1]}'" if oldest > (0, 0) else f"pip install {name}"
    if not version:
        return Finding(name, Verdict.MISSING, f"cannot be imported: {why}", mend)
    if _release(version) < oldest:
        return Finding(name, Verdict.MISSING, f"{version} is too old", mend)
    return Finding(name, Verdict.OK, version)


def _release(version: str) -> tuple[int, int]:
    major, minor = ([int(x) if x.isdigit() else 0 for x in version.split("+")[0].split(".")] + [0, 0])[:2]
    return major, minor


def threads(cores: int, asked: str) -> Finding:
    """``asked`` is OMP_NUM_THREADS, or empty. Local nodes get the number of the job."""
    text = f"{cores} cores; a node computes with [job] threads, 1 by default"
    if asked and (not asked.isdigit() or int(asked) < 1):
        mend = "unset it, or set it to the job's threads"
        return Finding("threads", Verdict.WARN, f"OMP_NUM_THREADS={asked} is not a number of threads", mend)
    if cores < 2:
        return Finding(
            "threads", Verdict.WARN, text, "the nodes of a local cluster share one core here: start few of them"
        )
    return Finding("threads", Verdict.OK, text)


def redis(path: str, why: str) -> Finding:
    """``path``: the server that Culm takes, in words; empty: there is none, and ``why`` says so, and the mend."""
    if path:
        return Finding("redis-server", Verdict.OK, path)
    what, _, mend = why.partition("; ")
    return Finding("redis-server", Verdict.MISSING, what, mend)


def port(name: str, number: int, free: bool, flag: str) -> Finding:
    if free:
        return Finding(name, Verdict.OK, f"port {number} is free")
    mend = f"nothing to do if your own cluster listens there; else choose another port with {flag}"
    return Finding(name, Verdict.WARN, f"port {number} is taken", mend)


def docker(path: str) -> Finding:
    if path:
        return Finding("docker", Verdict.OK, path)
    return Finding(
        "docker", Verdict.WARN, "not found", "install it if you want docker compose: https://docs.docker.com/engine"
    )


def certificate(name: str, valid: tuple[datetime, datetime], now: datetime) -> Finding:
    """One certificate of CULM_TLS_DIR; ``now`` is in the same zone of time."""
    first, last = valid
    if now < first:
        return Finding(
            name, Verdict.MISSING, f"not valid before {first:%Y-%m-%d %H:%M} UTC", "set this machine's clock right"
        )
    if now > last:
        return Finding(
            name, Verdict.MISSING, f"expired on {last:%Y-%m-%d %H:%M} UTC", "issue a new one: culm certs issue"
        )
    text = f"valid until {last:%Y-%m-%d %H:%M} UTC"
    if last - now < SOON:
        return Finding(name, Verdict.WARN, text, "issue a new one soon: culm certs issue")
    return Finding(name, Verdict.OK, text)


def disk(free: int, where: str) -> Finding:
    """``free`` in bytes."""
    text = f"{free / 1e9:.1f} GB free at {where}"
    mend = "free some space: logs, Redis and checkpoints need it"
    if free < NO_DISK:
        return Finding("disk", Verdict.MISSING, text, mend)
    return Finding("disk", Verdict.WARN if free < LITTLE_DISK else Verdict.OK, text, mend if free < LITTLE_DISK else "")


def clock(now: datetime, synchronised: bool | None) -> Finding:
    """``synchronised``: what the kernel says; None if it says nothing."""
    text = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    mend = "let the machine set its clock: timedatectl set-ntp true"
    if now.replace(tzinfo=None) < WRITTEN:
        return Finding("clock", Verdict.MISSING, f"{text} is in the past", mend)
    if synchronised is False:
        return Finding("clock", Verdict.WARN, f"{text}; nothing keeps the clock right", mend)
    return Finding("clock", Verdict.OK, text)
