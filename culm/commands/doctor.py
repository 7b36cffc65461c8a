"""``culm doctor``: what is missing on this machine, and how to mend it."""

import argparse
import ctypes
import json
import os
import shutil
import ssl
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from culm.local.ports import is_free
from culm.local.redis_binary import RedisUnavailable, candidates, choose
from culm.pipeline.default_ports import COORDINATOR_PORT, UI_PORT
from culm.pipeline.text import plain
from culm.terminal import checks
from culm.terminal.checks import Finding, Verdict
from culm.terminal.validity import validity

TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
TIMEX_BYTES = 256  # of struct timex, with room to spare
TLS_FILES = ("ca.crt", "tls.crt", "tls.key")


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "doctor",
        help="what is missing on this machine",
        description="Checks this machine. Each finding is ok, warn (Culm runs all the same) or missing, with its mend.",
        epilog="examples:\n  culm doctor\n  culm doctor --json",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    found = list(examine())
    ill = any(f.verdict is Verdict.MISSING for f in found)
    if arguments.json:
        print(json.dumps({"ok": not ill, "findings": [asdict(f) for f in found]}))
    else:
        print("\n".join(map(in_words, found)))
    return 1 if ill else 0


def in_words(finding: Finding) -> str:
    line = f"{finding.verdict.value:<8} {finding.name:<13} {plain(finding.text)}"
    return f"{line}\n{'':22} -> {plain(finding.mend)}" if finding.mend else line


def examine() -> Iterable[Finding]:
    """Every finding about this machine, in the order in which to mend them."""
    now = datetime.now(UTC)
    yield checks.python(sys.version_info[:2], sys.executable)
    yield _package("torch", "torch", checks.OLDEST_TORCH)
    yield _package("grpcio", "grpc", (1, 76))
    yield _package("redis", "redis", (6, 0))
    yield checks.threads(os.cpu_count() or 1, os.environ.get("OMP_NUM_THREADS", ""))
    yield _redis()
    yield checks.port("coordinator", COORDINATOR_PORT, is_free(COORDINATOR_PORT), "culm coordinator --listen")
    yield checks.port("ui", UI_PORT, is_free(UI_PORT), "culm ui --listen")
    yield checks.docker(shutil.which("docker") or "")
    yield from _certificates(os.environ.get("CULM_TLS_DIR", ""), now)
    yield checks.disk(shutil.disk_usage(Path.cwd()).free, str(Path.cwd()))
    yield checks.clock(now, _synchronised())


def _package(name: str, module: str, oldest: tuple[int, int]) -> Finding:
    try:
        version, why = str(import_module(module).__version__), ""
    except (ImportError, OSError) as error:  # OSError: a shared library of it is broken
        version, why = "", str(error).splitlines()[0]
    return checks.package(name, version, why, oldest)


def _redis() -> Finding:
    try:
        chosen, why = choose(list(candidates()))
        return checks.redis(f"{chosen}: {why}", "")
    except RedisUnavailable as error:
        return checks.redis("", str(error))


def _certificates(folder: str, now: datetime) -> Iterable[Finding]:
    """Whether the files are there, are certificates, are valid now, and belong together."""
    if not folder:
        mend = "stay on loopback or a network of your own, or set CULM_TLS_DIR to a folder of certificates"
        yield Finding("tls", Verdict.WARN, "CULM_TLS_DIR is not set: traffic is not encrypted", mend)
        return
    mend = f"put {', '.join(TLS_FILES)} into the folder that CULM_TLS_DIR names, readable by this user"
    for name in TLS_FILES:
        path = Path(folder) / name
        try:
            text = path.read_text(encoding="ascii", errors="replace")
            if path.suffix == ".crt":
                yield checks.certificate(name, validity(text), now)
        except OSError as error:
            yield Finding(name, Verdict.MISSING, f"{path}: {error.strerror}", mend)
            return
        except ValueError as error:
            yield Finding(name, Verdict.MISSING, f"{path}: {error}", mend)
            return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(Path(folder) / "tls.crt", Path(folder) / "tls.key")
    except ssl.SSLError as error:
        yield Finding("tls.key", Verdict.MISSING, f"the key does not belong to tls.crt: {error.reason}", mend)
    else:
        yield Finding("tls.key", Verdict.OK, "the key belongs to tls.crt")


def _synchronised() -> bool | None:
    """Whether the kernel says that its clock is synchronised; None where nobody can ask it."""
    if sys.platform != "linux":
        return None
    timex = ctypes.create_string_buffer(TIMEX_BYTES)  # all zero: change nothing, only ask
    said: int = ctypes.CDLL(None).adjtimex(timex)
    return None if said < 0 else said != TIME_ERROR
