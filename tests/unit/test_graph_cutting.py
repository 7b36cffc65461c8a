"""Cutting a graph into files: what the command says, and that half a cut leaves nothing to train from."""

import json
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from culm.graphs.chunk_folder import ChunkFolder
from culm.graphs.chunk_index import read_index
from culm.graphs.cutting import write_chunks
from culm.graphs.datasets import blocks
from culm.pipeline.errors import JobError
from culm.pipeline.job import load_job
from culm.pipeline.user_code.graph.chunks import ChunkedGraph
from tests.hostile.commands import in_process

EXAMPLES = Path(__file__).parents[2] / "examples"
COUNT = 4


def test_a_cut_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(written: int) -> None:
        if written == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_chunks(ChunkedGraph(blocks(vertices=60), COUNT), "range", tmp_path / "chunks", interrupt)
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from pathlib import Path
from culm.graphs.cutting import write_chunks
from culm.graphs.datasets import blocks
from culm.pipeline.user_code.graph.chunks import ChunkedGraph
write_chunks(ChunkedGraph(blocks(vertices=60), 4), "range", Path(sys.argv[1]),
             lambda written: os.kill(os.getpid(), signal.SIGKILL) if written == 4 else None)
"""


def test_a_cut_that_is_killed_leaves_no_folder_to_train_from(tmp_path: Path) -> None:
    folder = tmp_path / "chunks"
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == ["chunks.part"]
    assert len(list((tmp_path / "chunks.part").iterdir())) == 4, "all files are there but the index"
    with pytest.raises(JobError, match=r"has no index\.json"):
        ChunkFolder(tmp_path / "chunks.part")
    with pytest.raises(JobError, match="another culm chunks writes it, or one was killed: wait, or remove it"):
        write_chunks(ChunkedGraph(blocks(vertices=60), COUNT), "range", folder)
    shutil.rmtree(tmp_path / "chunks.part")
    write_chunks(ChunkedGraph(blocks(vertices=60), COUNT), "range", folder)
    assert len(ChunkFolder(folder)) == COUNT


def test_a_disk_without_room_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    limited = "import resource, sys; from culm.__main__ import main; "
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)); sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", limited, "chunks", str(EXAMPLES / "blocks.toml"), str(tmp_path / "chunks")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "the chunks cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_to_write_into_the_job(tmp_path: Path) -> None:
    job = EXAMPLES / "blocks.toml"
    few = ["--set", "graph.args.vertices=60", "--set", "graph.chunks=4", "--set", "graph.partitioner=hash"]
    (tmp_path / "chunks").mkdir()  # one that is empty is as good as none
    told = in_process("chunks", str(job), "chunks", *few, folder=tmp_path)
    assert (told.code, told.err) == (0, "")
    first, second, third, _, *lines = told.out.splitlines()
    assert first.startswith("chunks: 4 chunks of 60 vertices and ")
    assert second.startswith("the largest chunk: 15 vertices, ")
    assert third.startswith("to train from the folder, write into the job")
    written = tomllib.loads("\n".join(lines))
    wanted = {"chunks": 4, "partitioner": "hash", "data": "culm.graphs.readers:chunks", "args": {"path": "chunks"}}
    assert written == {"graph": wanted}
    there = {**wanted, "args": "{ path = 'chunks' }"}
    changes = [f"graph.{key}={value}" for key, value in there.items()]
    assert load_job(job, changes).graph is not None
    again = in_process("chunks", str(job), "others", "--json", *few, folder=tmp_path)
    found = json.loads(again.out)
    assert found["contents"] == read_index(tmp_path / "chunks").contents
    assert found["bytes"] == sum(path.stat().st_size for path in (tmp_path / "others").glob("chunk-*"))
    assert [chunk["vertices"] for chunk in found["chunks"]] == [15] * 4
    assert {path.name: path.read_bytes() for path in (tmp_path / "others").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "chunks").iterdir()
    }, "cut again, it has the same bytes"
    from_it = in_process(
        "chunks", str(job), "more", "--set", 'graph.data="culm.graphs.readers:chunks"', folder=tmp_path
    )
    assert "the job's graph is a folder of chunks already" in from_it.line
