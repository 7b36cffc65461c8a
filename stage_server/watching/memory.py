"""How much memory a node may use: its machine's, its container's or its accelerator's."""

from culm.stage_server.compute.device import Device
from culm.stage_server.watching.control_groups import memory_limits


def memory_bytes(device: Device, said: int = 0) -> int:
    """``said``: by whoever started the node; 0 if nobody has said."""
    if said:
        return said
    total = device.memory().total
    return min([total, *memory_limits()]) if device.in_host else total
