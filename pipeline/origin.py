"""What an era begins from: one checkpoint, named once, by the decision that begins the era (rule 14)."""

from dataclasses import dataclass, field

from culm.pipeline.early_stop import NONE_SO_FAR, BestSoFar


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """The state after ``step`` steps, as ``folder`` has it; without a folder the initial state.

    ``sha256`` is the manifest's. A folder may be written again later: the hash tells which of its contents is meant.
    """

    step: int = 0
    folder: str = ""
    sha256: str = ""
    # As the manifest has it, which the hash names; None where that does not tell.
    best_so_far: BestSoFar | None = field(default=NONE_SO_FAR, compare=False)

    def __str__(self) -> str:
        return f"the checkpoint {self.folder}" if self.folder else "the initial state"
