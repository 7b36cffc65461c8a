"""Whether a layer's state from elsewhere is of this layer: names, shapes, dtypes. Knows nothing of its source."""

from torch import nn

from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.entries import entries_of
from culm.pipeline.user_code.layer_shapes import OF_THE_MODEL


def misfit(module: nn.Module, state: Value) -> str:
    """What is wrong, in words; nothing if the state can be installed. A wrong shape might be broadcast silently."""
    expected = entries_of(module)
    given = {name: tensor for name, tensor in state.tensors if name.partition(".")[0] in OF_THE_MODEL}
    for name in sorted(expected.keys() ^ given.keys()):
        return f"it has no {name}" if name in expected else f"it has {name}, which the layer has not"
    for name, tensor in given.items():
        there, here = (tensor.dtype, tuple(tensor.shape)), (expected[name].dtype, tuple(expected[name].shape))
        if there != here:
            return f"its {name} is {there[0]} of shape {list(there[1])}, the layer's {here[0]} of {list(here[1])}"
    return ""
