"""The bookmark of a checkpoint: a file beside the layers, from which a run reads its iterable dataset on."""

# No manifest has its hash: the run's weights do not depend on whether it is there. But what it says has to be what was
# written, or other samples would follow. So the file has a hash of its own.

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict

from culm.pipeline.bookmark import MOST_BYTES, Bookmark
from culm.pipeline.checkpoints import storage

log = logging.getLogger("culm.checkpoint")

FILE = "bookmark.json"
MOST_IN_FILE = 4 * MOST_BYTES


def put(folder: str, bookmark: Bookmark | None) -> None:
    """None: takes away what another run may have left there. Raises OSError."""
    if bookmark is None:
        storage.remove(folder, FILE)
    else:
        storage.put(folder, FILE, [to_bytes(bookmark)])


def read(folder: str) -> Bookmark | None:
    """None where there is none that can be trusted: then the samples before are read once more.

    Raises OSError where the storage does not answer.
    """
    try:
        found = from_bytes(storage.read(folder, FILE, MOST_IN_FILE))
    except FileNotFoundError:
        found = None
    if found is None:
        log.warning("%s has no whole %s, so all samples of the steps before are read once more", folder, FILE)
    return found


def to_bytes(bookmark: Bookmark) -> bytes:
    content = {**asdict(bookmark), "state": bookmark.state.hex()}
    return json.dumps({**content, "sha256": _hash(content)}, indent=1).encode()


def from_bytes(data: bytes) -> Bookmark | None:
    """None: it is not whole."""
    try:
        content = json.loads(data)
        if content.pop("sha256") != _hash(content):
            return None
        return Bookmark(
            version=int(content["version"]),
            of=str(content["of"]),
            digest=str(content["digest"]),
            state=bytes.fromhex(content["state"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _hash(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
