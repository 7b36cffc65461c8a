"""The parts of what a run's bits depend on, by name; see ``culm.pipeline.identity``. Known without reading any job."""

import re
from collections.abc import Iterable, Mapping

from culm.pipeline.errors import JobError

PARTS = ("model", "data", "train", "code", "versions", "hardware", "configuration", "samples")

# What nodes of one run agree on beside these, and what changes no bit of the weights: a checkpoint does not tell it.
OF_NODES = ("evaluation",)

# What may come from a machine: with ``hardware = "any"`` nodes do not compare it.
OF_MACHINES = frozenset({"hardware", "configuration", "samples", "evaluation"})

# What also differs where one of these does: dropout rates with the model's arguments, samples with the seed.
_FOLLOWS = {
    "configuration": frozenset({"model", "code", "versions"}),
    "samples": frozenset({"data", "train", "code", "versions", "hardware"}),
}


def samples_in_words(count: int | None, digest: str) -> str:
    """The part ``samples``: ``1797 samples, 0123456789abcdef``. None: of an iterable dataset nobody knows how many."""
    return f"{'a row of' if count is None else count} samples, {digest}"


def samples_per_epoch(parts: Mapping[str, str]) -> int:
    """How many samples the dataset has, as the nodes told it; 0: nobody knows, or nobody compares datasets."""
    found = re.match(r"(\d+) samples, ", parts.get("samples", ""))
    return int(found.group(1)) if found else 0


def parse_allowed(text: str) -> frozenset[str]:
    """The parts that may differ from a checkpoint's, from ``model,data``. Raises JobError for an unknown one."""
    given = frozenset(part.strip() for part in text.split(",") if part.strip())
    for part in sorted(given - set(PARTS)):
        raise JobError(f"{part!r} is not a part of a run", "--allow", f"choose from {','.join(PARTS)}")
    return given


def with_what_follows(allowed: Iterable[str]) -> frozenset[str]:
    """The parts that may differ where these may."""
    given = frozenset(allowed)
    return given | {part for part, causes in _FOLLOWS.items() if causes & given}
