"""What nodes have written of one step, and said of it, until its checkpoint is whole. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from culm.pipeline.checkpoints.manifest import File
from culm.pipeline.early_stop import BestSoFar


@dataclass(frozen=True, slots=True)
class Shares:
    """``loss``: of the step that led to the version; NaN, and ``best_so_far`` None, as long as nobody has told.

    A node that was seeded after the commit has not heard either, and its share may be the last to come.
    """

    files: Mapping[int, tuple[File, ...]] = field(default_factory=dict)  # by layer
    loss: float = math.nan
    best_so_far: BestSoFar | None = None

    def joined(self, other: "Shares") -> "Shares":
        """Both. All holders write the same files and hear the same commit, so what was told first stays."""
        loss = other.loss if math.isnan(self.loss) else self.loss
        return Shares({**self.files, **other.files}, loss, self.best_so_far or other.best_so_far)
