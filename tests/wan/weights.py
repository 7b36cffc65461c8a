"""Prints the sha256 of a finished run's weights: ``python -m tests.wan.weights COORDINATOR``, on a host it reaches."""

import sys

from culm.local.gathering import gather
from culm.pipeline.checkpoints.digest import weights_sha256
from culm.terminal.client import connect


def main(coordinator: str) -> None:
    channel, stub = connect(coordinator, patience=10.0)
    with channel:
        print(weights_sha256(gather(stub, lambda: None)))


if __name__ == "__main__":
    main(sys.argv[1])
