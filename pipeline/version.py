"""The version of the wire contract. Nodes and coordinator must agree on it."""

PROTOCOL_VERSION = 10
