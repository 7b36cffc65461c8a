"""A folder of chunks that ``culm chunks`` has written, as what a job trains on: ``Chunks`` that lie in files.

A chunk's file is looked at when somebody first asks for the chunk, and let go of when nobody runs the chunk any more.
So a graph server needs memory for the chunks that it runs, however large the graph is.
"""

from collections.abc import Collection
from pathlib import Path

import torch

from culm.graphs.chunk_file import ReadChunk, Unfit, digest_of, map_chunk
from culm.graphs.chunk_index import CUT, WHERE, Index, file_of, read_index
from culm.pipeline.errors import JobError
from culm.pipeline.neighbours import Neighbours
from culm.pipeline.user_code.graph.chunks import Chunk


class ChunkFolder:
    """``Chunks`` of a folder. Files are compared with the index that was read when it was opened."""

    def __init__(self, folder: Path) -> None:
        """Raises JobError where the folder is none, or a file of it is missing or of another size."""
        self._folder = folder
        self.index: Index = read_index(folder)
        self.neighbours: Neighbours = self.index.neighbours
        self.contents: str = self.index.contents
        self._kept: dict[int, ReadChunk] = {}
        self._compared: dict[int, tuple[int, int, int]] = {}  # chunks by number: their files as they were then
        for number in range(len(self)):
            self._look_at(number)

    def check_fits(self, chunks: int, partitioner: str) -> None:
        """Raises JobError where the job asks for other chunks."""
        mend = "or cut the graph anew with culm chunks, for this job"
        if chunks != len(self):
            what = f"graph.chunks is {chunks}, and the graph in {self._folder} is cut into {len(self)}"
            raise JobError(what, "graph.chunks", f"set it to {len(self)}, {mend}")
        if partitioner != self.index.partitioner:
            what = f'graph.partitioner is "{partitioner}", and {self._folder} is cut by "{self.index.partitioner}"'
            raise JobError(what, "graph.partitioner", f'set it to "{self.index.partitioner}", {mend}')

    def __len__(self) -> int:
        return len(self.index.chunks)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        chunk = (self._kept.get(number) or self._read(number)).chunk  # who looks at samples runs no chunk
        return chunk.features, chunk.labels

    def chunk(self, number: int) -> Chunk:
        return self._kept_or_read(number).chunk

    def rows(self, taker: int, of: int) -> torch.Tensor:
        if taker == of:
            return torch.arange(self.index.chunks[of].vertices)
        return self._kept_or_read(of).given[taker]

    def keep(self, numbers: Collection[int]) -> None:
        self._kept = {number: read for number, read in self._kept.items() if number in numbers}

    def _kept_or_read(self, number: int) -> ReadChunk:
        if number not in self._kept:
            self._kept[number] = self._read(number)
        return self._kept[number]

    def _look_at(self, number: int) -> tuple[int, int, int]:
        """Size, time and number of a chunk's file. Raises JobError where it is missing, or has another size."""
        path, wanted = self._path(number), self.index.chunks[number].size
        try:
            found = path.stat()
        except OSError as error:
            mend = f"copy it from where it was cut, or {CUT}"
            raise JobError(f"{path} cannot be read: {error.strerror}", WHERE, mend) from error
        if found.st_size != wanted:
            raise self._wrong(number, f"it has {found.st_size} bytes, and the index says {wanted}")
        return found.st_size, found.st_mtime_ns, found.st_ino

    def _read(self, number: int) -> ReadChunk:
        seen = self._look_at(number)
        path = self._path(number)
        try:
            if self._compared.get(number) != seen:
                if digest_of(path) != self.index.chunks[number].digest:
                    raise self._wrong(number, "its digest is not the one in the index")
                self._compared[number] = seen
            return map_chunk(path, self.index, number)
        except Unfit as error:
            raise self._wrong(number, str(error)) from error
        except OSError as error:
            mend = "see that every graph server can read the folder"
            raise JobError(f"{path} cannot be read: {error.strerror}", WHERE, mend) from error

    def _wrong(self, number: int, why: str) -> JobError:
        what = f"{self._path(number)} is not the file that was written for chunk {number}: {why}"
        return JobError(what, WHERE, f"copy it again from where it was cut, or {CUT}")

    def _path(self, number: int) -> Path:
        return self._folder / file_of(number)
