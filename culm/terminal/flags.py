"""What may stand on a command line: numbers with bounds, addresses, files to be written, names, URLs.

Each function is a ``type`` for argparse. It refuses a bad value before anything starts, in one line that says what,
where, and the mend. A default may come from an environment variable; a line about it names the variable.
"""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from culm.pipeline import default_ports
from culm.pipeline.errors import JobError
from culm.pipeline.identity_parts import PARTS, parse_allowed
from culm.pipeline.rpc.located import FILE
from culm.pipeline.text import LONGEST_NAME, check_name, closest, plain, refuse_secrets, shortened, shown_url

MOST_NODES = 256  # processes of a local cluster
LONGEST_SECONDS = 10 * 365 * 86400.0
ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
LOOPBACK = "127.0.0.1"
ADDRESS_MEND = "write HOST:PORT, such as 127.0.0.1:7070"


class Variable(str):
    """A default that an environment variable holds. ``variable``: its name."""

    variable: str

    def __new__(cls, text: str, variable: str) -> "Variable":
        made = super().__new__(cls, text)
        made.variable = variable
        return made


def from_environment(variable: str, default: str = "") -> str:
    """The variable's value; the default where it is not set, or empty."""
    text = os.environ.get(variable, "")
    return Variable(text, variable) if text else default


class Refused(argparse.ArgumentTypeError):
    """Why an argument is refused, and the mend; argparse adds where."""

    def __init__(self, text: str, what: str, mend: str) -> None:
        shown = shortened(plain(shown_url(text)), 80)
        whence = f"{text.variable}={shown}" if isinstance(text, Variable) else repr(shown)
        super().__init__(f"{whence} {what}; {mend}")


def whole(least: int = 0, most: int = 2**31 - 1) -> Callable[[str], int]:
    """A whole number within bounds."""

    def parse(text: str) -> int:
        mend = f"give a whole number from {least} to {most}"
        # int() alone would also take 1_0, and the digits of other scripts.
        if re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()) is None:
            raise Refused(text, "is not a whole number", mend)
        if not least <= int(text) <= most:
            raise Refused(text, "is too small" if int(text) < least else "is too large", mend)
        return int(text)

    return parse


def number(least: float = 0.0, most: float = math.inf, above: bool = False) -> Callable[[str], float]:
    """A finite number within bounds; ``above``: it is more than the least."""

    def parse(text: str) -> float:
        bound = f"above {least:g}" if above else f"of {least:g} or more"
        mend = f"give a number {bound}" + (f", up to {most:g}" if math.isfinite(most) else "")
        try:
            value = float(text)
        except ValueError:
            raise Refused(text, "is not a number", mend) from None
        if not math.isfinite(value):
            raise Refused(text, "is not a finite number", mend)
        if value < least or (above and value == least):
            raise Refused(text, "is too small", mend)
        if value > most:
            raise Refused(text, "is too large", mend)
        return value

    return parse


seconds = number(0.0, LONGEST_SECONDS)
some_seconds = number(0.0, LONGEST_SECONDS, above=True)
nodes = whole(0, MOST_NODES)
seed = whole(0, 2**63 - 1)


def switch(text: str) -> bool:
    """The value of a variable for a flag that is on or off."""
    if text.lower() not in (*ON, *OFF):
        raise Refused(text, "is neither on nor off", "write 1 or 0")
    return text.lower() in ON


def add_switch(parser: argparse.ArgumentParser, flag: str, variable: str, what: str | None = None) -> None:
    """A flag that the variable can switch on as well."""
    action = parser.add_argument(flag, action="store_true", default=from_environment(variable, "0"), help=what)
    action.type = switch  # argparse applies it to a default that is a text


def address(text: str, least_port: int = 1) -> str:
    """HOST:PORT where somebody listens; or what gRPC takes for a socket file, unix:PATH."""
    if text.startswith("unix:") and len(text) > len("unix:"):
        return str(text)
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,10}", port) or not re.fullmatch(r"[\w.\-:/\[\]%]*", host):
        raise Refused(text, "is not an address", ADDRESS_MEND)
    if ":" in host and not host.startswith("[") and "/" not in host:
        raise Refused(text, "is not an address", "write [HOST]:PORT where the host is an IPv6 address")
    if not host and least_port:
        raise Refused(text, "names no host", ADDRESS_MEND)
    if not least_port <= int(port) <= 65535:
        raise Refused(text, "has an impossible port", f"choose a port from {least_port} to 65535")
    return str(text)


listen_address = partial(address, least_port=0)  # port 0: any that is free


def default_coordinator() -> str:
    """The coordinator's address where the command line names none."""
    return from_environment("CULM_COORDINATOR", default_ports.COORDINATOR)


def add_coordinator(parser: argparse.ArgumentParser) -> None:
    """The coordinator that the command asks: by its address, or by the name of its cluster (``engines``)."""
    what = (
        f"the run's coordinator; default: CULM_COORDINATOR, else {default_ports.COORDINATOR}, "
        "or where none answers there that of the only cluster that is up"
    )
    default = from_environment("CULM_COORDINATOR") or None  # None: ``named_cluster.coordinator_of`` finds it
    parser.add_argument("--coordinator", type=address, default=default, metavar="HOST:PORT", help=what)
    cluster = "ask the coordinator of this cluster, which culm up started, with the cluster's certificate"
    parser.add_argument("--cluster", type=optional(name), default="", metavar="NAME", help=cluster)


def add_own_coordinator(parser: argparse.ArgumentParser) -> None:
    """The coordinator that a node attends."""
    what = (
        f"the run's coordinator, or file:PATH with its address, where it may move; default: CULM_COORDINATOR, "
        f"else {default_ports.COORDINATOR}"
    )
    default = default_coordinator()
    parser.add_argument("--coordinator", type=address_or_file, default=default, metavar="HOST:PORT", help=what)


def address_or_file(text: str) -> str:
    """HOST:PORT, or file:PATH of a file that has it, or will."""
    return str(text) if text.startswith(FILE) and len(text) > len(FILE) else address(text)


def optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """As ``parse``, or empty."""
    return lambda text: parse(text) if text else ""


def name(text: str) -> str:
    """A name of a node, a run, a zone, a cluster."""
    try:
        return str(check_name(text, ""))
    except JobError as error:
        raise Refused(text, "is not a valid name", error.mend) from error


def url(text: str) -> str:
    """A URL of checkpoints, without secrets in it."""
    if not text:
        raise Refused(text, "is not a URL", "give file://, s3://, gs://, az:// or a plain path")
    try:
        return str(refuse_secrets(text, ""))
    except JobError as error:
        raise Refused(text, "holds a secret", error.mend) from error


def allowed(text: str) -> str:
    """Parts in which a run may differ from the checkpoint that it goes on from."""
    try:
        parse_allowed(text)
    except JobError as error:
        raise Refused(text, "does not name parts of a run", error.mend) from error
    return text


def add_allowed(parser: argparse.ArgumentParser, variable: str = "") -> None:
    """``variable``: of the environment, which gives what is allowed where the flag is not given."""
    default = from_environment(variable) if variable else ""
    known = f"{variable}, else none" if variable else "none"
    what = f"what may differ from the checkpoint of --resume: some of {','.join(PARTS)}; default: {known}"
    parser.add_argument("--allow", type=allowed, default=default, metavar="PARTS", help=what)


OF_TORCH = (".pt", ".pth", ".bin")  # what users call files that torch.load reads
OF_SAFETENSORS = ".safetensors"
NO_SAFETENSORS = "is named as a file of torch.save, and the weights are written as safetensors"


def weights_file(text: str) -> str:
    """A new file for weights as safetensors. Refuses a name of which torch.load would be expected to read it."""
    if text.endswith(OF_TORCH):
        mend = f"name it {OF_SAFETENSORS}; for torch.load there is culm checkpoint export --optimizer"
        raise Refused(text, NO_SAFETENSORS, mend)
    return new_file(text)


def new_file(text: str) -> str:
    """A file that is written at the end. Refuses at the beginning one that cannot be written; touches nothing."""
    path = Path(text)
    folder = path.resolve().parent
    if not text or path.is_dir():
        raise Refused(text, "is not a file", "give the path of a file to write")
    if not folder.is_dir():
        raise Refused(text, "cannot be written: its folder does not exist", "make the folder first")
    if not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise Refused(text, "cannot be written: permission denied", "choose a file that you may write")
    return str(text)


def new_folder(text: str) -> str:
    """A folder that is made at the end, or is there and empty."""
    path = Path(text)
    if not text or (path.exists() and not path.is_dir()):
        raise Refused(text, "is not a folder", "give the path of a folder to make")
    if path.is_dir() and any(path.iterdir()):
        raise Refused(text, "has something in it", "give the path of a folder to make")
    if not path.resolve().parent.is_dir():
        raise Refused(text, "cannot be made: the folder above it does not exist", "make that one first")
    return str(text)


def host(text: str) -> str:
    """HOST or HOST:PORT where others reach this machine."""
    _, colon, port = text.rpartition(":")
    if colon and not text.endswith("]") and re.fullmatch(r"[0-9]+", port):
        return address(text)
    if not re.fullmatch(r"[\w.\-]+|\[[0-9A-Fa-f:.%\w]+\]", text):
        raise Refused(text, "is not an address", "write HOST or HOST:PORT")
    return str(text)


def metrics_address(text: str) -> str:
    """[HOST:]PORT."""
    if ":" not in text and not re.fullmatch(r"[0-9]{1,10}", text):
        raise Refused(text, "is not an address", "give HOST:PORT or PORT, such as 9464")
    return listen_address(text) if ":" in text else listen_address(f"{LOOPBACK}:{text}").rpartition(":")[2]


def one_of(*known: str) -> Callable[[str], str]:
    """One of these words. Not argparse's choices: these would not check a default from a variable."""

    def parse(text: str) -> str:
        if text not in known:
            raise Refused(text, "is not known", closest(text, filter(None, known)))
        return str(text)

    return parse


def several(parse: Callable[[str], str]) -> Callable[[str], frozenset[str]]:
    """Of words with commas between them, each as ``parse`` wants it."""
    return lambda text: frozenset(parse(word.strip()) for word in text.split(","))


def notices(text: str) -> str:
    """Where preemption notices come from."""
    from culm.stage_server.notices import make_sources

    try:
        make_sources(text)
    except ValueError as error:
        what, _, mend = str(error).rpartition(": ")[2].partition("; ")
        raise Refused(text, f"cannot be watched: {what}", mend or "see culm stage --help") from error
    return str(text)


def redis_url(text: str) -> str:
    """Of a Redis server."""
    scheme, _, rest = text.partition("://")
    if scheme not in ("redis", "rediss", "unix") or not rest:
        raise Refused(
            text, "is not the URL of a Redis", "write redis://HOST:PORT/0, rediss:// for TLS, or unix:///PATH"
        )
    try:
        _ = urlsplit(text).port
    except ValueError as error:
        raise Refused(text, "has an impossible port", "choose a port up to 65535") from error
    return str(text)


def label(text: str) -> str:
    """A short text that is shown, such as a machine's type."""
    if len(text) > LONGEST_NAME or not text.isprintable():
        raise Refused(text, "is not a label", f"use up to {LONGEST_NAME} printable characters")
    return str(text)


class Parser(argparse.ArgumentParser):
    """Refuses a command line in one line. For an unknown word the line names the closest known one."""

    def error(self, message: str) -> NoReturn:
        text = " ".join(plain(message).split())
        unknown = re.fullmatch(r"unrecognized arguments: (.*)", text)
        if unknown is not None:
            word = unknown[1].split()[0]
            flags = [flag for action in self._actions for flag in action.option_strings]
            hint = closest(word.partition("=")[0], flags)
            text = f"{shortened(word, 80)} is not known here"
            text += f"; {hint}" if hint.startswith("did you mean") else ""
        text = re.sub(r"^argument (?:-\w/)?(?:\$/H\S*, )?", "", text)
        print(f"{self.prog}: {shortened(text)}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known: Iterable[str] = [str(choice) for choice in action.choices if choice]
            raise argparse.ArgumentError(action, f"{shortened(plain(str(value)), 80)!r}: {closest(str(value), known)}")


def shapes(text: str) -> tuple[tuple[int, int], ...]:
    """Replicas x stages, separated by commas: ``1x1,2x3``."""
    mend = "write replicas x stages, such as 1x1,2x3"
    words = [word.strip() for word in text.split(",")]
    if any(re.fullmatch(r"[0-9]{1,3}x[0-9]{1,3}", word) is None for word in words):
        raise Refused(text, "names no shapes", mend)
    found = tuple((int(replicas), int(stages)) for replicas, stages in (word.split("x") for word in words))
    if any(not 0 < replicas * stages <= MOST_NODES for replicas, stages in found):
        raise Refused(text, f"has a shape of no node, or of more than {MOST_NODES}", mend)
    return found
