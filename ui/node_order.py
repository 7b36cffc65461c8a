"""The order in which nodes stand in tables and charts."""

from culm.protos import coordinator_pb2 as pb


def by_name(name: str) -> tuple[str, int, str]:
    """By name, a number in it as a number."""
    digits = name[len(name.rstrip("0123456789")) :]
    return (name.removesuffix(digits) if digits else name, int(digits or 0), name)


def in_order(node: pb.NodeStatus) -> tuple[str, int, str]:
    return by_name(node.id)
