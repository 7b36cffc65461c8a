"""The committed stubs are what the .proto files make."""

import subprocess
import sys
from pathlib import Path

from culm.protos.generate import differing

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_stubs_are_up_to_date() -> None:
    command = [sys.executable, "-m", "culm.protos.generate", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_stub_that_differs_is_named() -> None:
    fresh = {"stage_pb2.py": b"new", "tensor_pb2.py": b"same", "added_pb2.py": b"new"}
    committed = {"stage_pb2.py": b"old", "tensor_pb2.py": b"same", "gone_pb2.py": b"old"}
    assert differing(fresh, committed) == [
        "culm/protos/added_pb2.py is missing",
        "culm/protos/gone_pb2.py comes from no .proto file",
        "culm/protos/stage_pb2.py differs from what its .proto file makes",
    ]
