"""The [graph] section of the job file, and the keys of other sections that follow from it."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from culm.pipeline.job_sections import Arguments, Factory, Few, Section


class GraphSection(Section):
    """A graph to train on, in place of [data] and [pipeline]. A step is an epoch: every vertex once.

    The model's layers are ``culm.graphs.GraphLayer``s, the loss is called with (output, chunk), and returns a sum and a
    count.
    """

    data: Annotated[
        Factory, "returns a culm.graphs.Graph; `culm.graphs.readers:chunks` opens one that `culm chunks` has cut"
    ]
    args: Annotated[Arguments, "what it is called with"] = Field(default={})
    layers: Annotated[Few, "how many layers the model has"]
    chunks: Annotated[
        Few, "parts that the vertices are cut into. What is computed together decides bits, so they are the job's"
    ] = 8
    partitioner: Annotated[
        Literal["range", "hash", "metis"],
        'how: "range" in the order of the vertices, "hash" after they are spread, "metis" with few edges between '
        "chunks",
    ] = "range"
    servers: Annotated[Few, "how many graph servers `culm run` starts; their number changes no bit"] = 1
    workers: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=0, le=1000)],
        "how many tensor workers `culm run` starts; their number changes no bit. Where there is none the graph servers "
        'compute all themselves. "auto": as many as make epochs faster and are worth their price',
    ] = 0
    most_workers: Annotated[Few, 'how many `workers = "auto"` may come to'] = 16
    staleness: Annotated[
        int,
        Field(ge=0, le=64),
        "how many epochs old the values are that a chunk takes of other chunks, and the gradients that these give it; "
        "its own are always new, and so are the weights. 0: it waits for them at every layer. Bits depend on this and "
        "on the next two keys, and on no machine",
    ] = 0
    refresh: Annotated[
        Few,
        "with `staleness`: every so many epochs one takes new values. A node that is lost in between takes the run "
        "back to the newest checkpoint, so `checkpoint.every` is a multiple of it",
    ] = 10
    fresh_at_end: Annotated[
        int, Field(ge=0, le=2**31 - 1), "with `staleness`: how many of the last epochs take new values"
    ] = 2

    @model_validator(mode="after")
    def _is_fresh_now_and_then(self) -> Self:
        if self.staleness >= self.refresh:
            what = f"every {self.refresh} epochs one is fresh, so no value gets {self.staleness} epochs old"
            raise ValueError(f"{what}: set graph.refresh to {self.staleness + 1} or more")
        return self

    @property
    def first_workers(self) -> int:
        """How many a run begins with."""
        return min(self.servers, self.most_workers) if self.workers == "auto" else self.workers

    def sections(self) -> dict[str, dict[str, Any]]:
        """The keys of other sections that follow from this one."""
        made_of = {"data": self.data, "args": self.args, "chunks": self.chunks, "partitioner": self.partitioner}
        return {
            "data": {
                "dataset": "culm.graphs.loading:chunked",
                "args": made_of,
                "microbatch": 1,
                "shuffle": False,
            },
            "pipeline": {"stages": self.layers, "microbatches": 1, "pipelines": self.chunks, "lead": self.chunks},
            "train": {"reduction": "sum"},
        }
