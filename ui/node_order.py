"""The order in which nodes stand in tables and charts."""

from culm.protos import coordinator_pb2 as pb


def in_order(node: pb.NodeStatus) -> tuple[str, int, str]:
    """By name, a number in it as a number."""
    digits = node.id[len(node.id.rstrip("0123456789")) :]
    return (node.id.removesuffix(digits) if digits else node.id, int(digits or 0), node.id)
