"""Where a node stands, between the message and the worker's record."""

from culm.pipeline.ties import Addend
from culm.protos import stage_pb2
from culm.stage_server.worker.effects import Standing


def standing_to_proto(standing: Standing) -> stage_pb2.Synced:
    term, generation = standing.order
    synced = stage_pb2.Synced(term=term, generation=generation, era=standing.era, committed=standing.committed)
    for (bucket, use), pipelines in standing.covers.items():
        synced.covers.append(stage_pb2.Cover(bucket=bucket, use=use, pipelines=sorted(pipelines)))
    synced.reduced.extend(sorted(standing.reduced))
    return synced


def standing_from_proto(synced: stage_pb2.Synced) -> Standing:
    return Standing(
        order=(synced.term, synced.generation),
        era=synced.era,
        committed=synced.committed,
        covers={Addend(cover.bucket, cover.use): frozenset(cover.pipelines) for cover in synced.covers},
        reduced=frozenset(synced.reduced),
    )
