"""Samples that take their time: a run of real nodes that is long while pages are looked at, and then ends soon.

The file that CULM_TEST_PACE names has the seconds of a sample. A node does not take slow samples for slow work.
"""

import os
import time
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from culm.examples import stdlib_gpt

PACE = "CULM_TEST_PACE"


class Slow(Dataset[Any]):
    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self._pace = Path(os.environ[PACE])

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        time.sleep(float(self._pace.read_text() or 0.0))
        return self._samples[index]


def dataset(context: int) -> Slow:
    return Slow(stdlib_gpt.dataset(context=context))
