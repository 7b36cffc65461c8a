"""Where a coordinator is that may move: on some clusters it starts again on another machine."""

from pathlib import Path

FILE = "file:"


def located(named: str) -> str:
    """HOST:PORT as it is, or what the file of ``file:PATH`` says at present. Empty while the file says nothing."""
    if not named.startswith(FILE):
        return named
    try:
        return Path(named.removeprefix(FILE)).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
