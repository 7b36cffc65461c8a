"""The command of a page that is made from code: it writes the page, or with ``--check`` says whether that is due."""

import argparse
import sys
from pathlib import Path


def main(path: Path, text: str, module: str) -> int:
    """``text``: what the page is to say; ``module``: the one that makes it."""
    parser = argparse.ArgumentParser(description=f"Writes {path.name}.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    if not parser.parse_args().check:
        path.write_text(text)
        return 0
    if path.read_text() == text:
        return 0
    print(f"{path} is out of date: run python -m {module}", file=sys.stderr)
    return 1
