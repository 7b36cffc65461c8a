"""What ``culm.models`` uses of the private parts of torch; `tests/unit/test_private.py` tells when they change."""

from contextlib import AbstractContextManager
from typing import Any


def without_memory() -> AbstractContextManager[Any]:
    """Tensors made within have shapes and dtypes, and no values; unlike those of torch's meta device, code that looks
    at values goes on as under torch.compile. May be entered again.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes half a second

    return FakeTensorMode()
