"""Text that came from elsewhere: names, reasons, URLs. Checked where it enters, made harmless where it is shown.

A node's name, a reason in an event or an error of a storage may hold anything: escape sequences that write over the
terminal, marks that reverse the order of letters, a password. Whoever shows such text passes it through ``plain``;
whoever shows or keeps a URL passes it through ``shown_url``. Markup is escaped by those who show text with markup.
"""

import difflib
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from culm.pipeline.errors import JobError

if TYPE_CHECKING:
    from google.protobuf.message import Message

LONGEST_NAME = 64
LONGEST_TEXT = 1000  # characters of a reason or a fact: an event is a line that somebody reads
NAME = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}"
NAME_MEND = f"use letters, digits, '.', '_' and '-', {LONGEST_NAME} at most, a letter or a digit first"
HIDDEN = "***"

# CSI and OSC sequences, and those of two characters: ECMA-48, sections 5.3 to 5.6. A broken one leaves its letters,
# without the ESC before them.
_ESCAPES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|\x1b[@-_]")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_CHAINED = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*://)")  # as fsspec has them: simplecache::s3://..
# Parts of parameters' names whose values give access: S3's and Google's signatures, SAS tokens, keys and tokens.
_SECRET = re.compile(
    r"sig$|sign|token|secret|passw|pwd|credential|auth|access[_-]?key|account[_-]?key|api[_-]?key|private|^key$",
    re.IGNORECASE,
)
M = TypeVar("M", bound="Message")


def is_name(text: str) -> bool:
    """Whether it may name a node, a run, a job, a zone: letters, digits, '.', '_' and '-', 64 at most."""
    return re.fullmatch(NAME, text) is not None


def check_name(text: str, where: str) -> str:
    """The text. Raises JobError unless it may be a name."""
    if not is_name(text):
        raise JobError(f"{shortened(plain(text), 80)!r} is not a valid name", where, NAME_MEND)
    return text


def as_name(text: str) -> str:
    """A name made of any text, such as a host's name."""
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:LONGEST_NAME]
    return made or "unnamed"


def plain(text: str) -> str:
    """One line without control characters, escape sequences or marks that nobody sees."""
    if text.isprintable():
        return text
    spaced = (" " if c.isspace() else c if c.isprintable() else "" for c in _ESCAPES.sub("", text))
    return "".join(spaced).strip()


def shortened(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text, or its beginning and its end where it is longer than so many characters."""
    if len(text) <= longest:
        return text
    begin = longest * 2 // 3
    return f"{text[:begin]} ... {text[-(longest - begin - 5) :]}"


def told(text: str) -> str:
    """What another process says, fit to be kept and shown: plain, without secrets, and not too long."""
    return shortened(without_secrets(plain(text[: 10 * LONGEST_TEXT])))


def cleaned(message: M) -> M:
    """The protobuf message itself, all its texts made plain. For what is shown to people."""
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            _clean_map(value)
        elif kind is not None:
            for each in value if field.is_repeated else (value,):
                cleaned(each)
        elif isinstance(value, str):
            setattr(message, field.name, plain(value))
        elif field.is_repeated and value and isinstance(value[0], str):
            value[:] = [plain(each) for each in value]
    return message


def _clean_map(entries: Any) -> None:
    """For a map from names or numbers to texts or numbers. What is shown has no map of messages with texts in them."""
    for key, value in list(entries.items()):
        if isinstance(value, str):
            entries[key] = plain(value)
        if isinstance(key, str) and not key.isprintable():
            entries[plain(key)] = entries.pop(key)


def closest(text: str, known: Iterable[str]) -> str:
    """``did you mean X?`` where one of the known words is close, else all of them."""
    words = list(known)
    close = difflib.get_close_matches(text, words, n=1) or difflib.get_close_matches(
        text.lower(), [w for w in words if w.lower() == w], n=1
    )
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(words) or 'none'}"


def shown_url(url: str) -> str:
    """The URL without its secrets: passwords, tokens in a user's place, and parameters that give access.

    Two URLs that differ in nothing else are shown alike. What is no URL is shown as it is.
    """
    return "::".join(map(_shown, _CHAINED.split(url)))


def _shown(url: str) -> str:
    scheme, colon, _ = url.partition("://")
    if not colon:
        return url
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises unless a number stands after the host's colon
    except ValueError:
        return f"{scheme}://{HIDDEN}"
    shown = parts._replace(netloc=_netloc(parts), query=_query(parts.query), fragment=_query(parts.fragment))
    return url if shown == parts else shown.geturl()  # geturl changes some URLs: unix:/// becomes unix:/


def _netloc(parts: SplitResult) -> str:
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    if colon:
        return f"{name}:{HIDDEN}@{host}"
    # A user alone may be a token, as in https://TOKEN@host; abfs://CONTAINER@ACCOUNT is none.
    return f"{HIDDEN}@{host}" if at and parts.scheme in ("http", "https") else parts.netloc


def _query(query: str) -> str:
    if "=" not in query:
        return query
    named = (pair.partition("=") for pair in query.split("&"))
    return "&".join(f"{k}={HIDDEN}" if _SECRET.search(unquote(k)) else f"{k}{equals}{v}" for k, equals, v in named)


def without_secrets(text: str) -> str:
    """The text, every URL in it without its secrets."""
    return _URL.sub(lambda found: shown_url(found[0]), text) if "://" in text else text


def refuse_secrets(url: str, where: str) -> str:
    """The URL. Raises JobError where it holds a secret: a URL is kept with the run and shown to many."""
    if shown_url(url) != url and "${" not in url:
        mend = (
            "give it to every process by its environment (such as AWS_SECRET_ACCESS_KEY), or write ${NAME} in its "
            "place and set NAME there"
        )
        raise JobError(f"{shown_url(url)} holds a secret", where, mend)
    return url


@lru_cache(maxsize=1 << 14)
def _words_and_numbers(name: str) -> list[tuple[int, str]]:
    return [(int(d) if d else 0, w) for d, w in re.findall(r"(\d+)|(\D+)", name)]


def natural_order(names: Collection[str]) -> list[str]:
    """n2 before n10."""
    return sorted(names, key=_words_and_numbers)
