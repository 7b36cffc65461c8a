"""What an era begins from: one checkpoint, named once, by the decision that begins the era (rule 14)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """The state after ``step`` steps, as ``folder`` has it; without a folder the initial state.

    ``sha256`` is the manifest's. A folder may be written again later: the hash tells which of its contents is meant.
    """

    step: int = 0
    folder: str = ""
    sha256: str = ""

    def __str__(self) -> str:
        return f"the checkpoint {self.folder}" if self.folder else "the initial state"
