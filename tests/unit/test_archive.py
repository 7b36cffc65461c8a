"""Manifests are tried again until the storage takes them, in the newest era first of all."""

import asyncio
import hashlib
from pathlib import Path

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator.edges.archive import Archive
from culm.coordinator.edges.background import Background
from culm.pipeline.checkpoints.manifest import File, folder_of
from culm.pipeline.job import load_job

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"
DATA = b"a layer"
FILE = File("layer-00000.safetensors", len(DATA), hashlib.sha256(DATA).hexdigest())


def order(era: int, step: int) -> cmd.WriteManifest:
    return cmd.WriteManifest(era=era, step=step, loss=0.5, fingerprint="", files={0: (FILE,)})


def test_after_a_rollback_the_manifest_of_a_lower_step_is_tried_again(tmp_path: Path) -> None:
    """One attempt failed: the storage did not show a file yet. Of step 100, before the rollback, it never does."""
    url = f"file://{tmp_path}"
    job = load_job(EXAMPLE, [f"checkpoint.url={url}", "checkpoint.every=10"])

    async def play() -> list[reports.Report]:
        told: list[reports.Report] = []
        changed = asyncio.Event()

        def take(report: reports.Report) -> None:
            told.append(report)
            changed.set()

        archive = Archive(job, take, Background(lambda error: None))
        archive.carry_out(order(0, 100))
        archive.carry_out(order(1, 60))
        while sum(isinstance(report, reports.CheckpointFault) for report in told) < 2:
            await changed.wait()
            changed.clear()
        folder = Path(folder_of(url, 60).removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE.name).write_bytes(DATA)
        while not isinstance(told[-1], reports.Checkpointed):
            await changed.wait()
            changed.clear()
        return told

    last = asyncio.run(asyncio.wait_for(play(), 30.0))[-1]
    assert isinstance(last, reports.Checkpointed)
    assert last.checkpoint.step == 60
