"""What a job's own code lacks on this machine: which module or file, where it was looked for, and the mend."""

import sys
from pathlib import Path

import pytest

from culm.pipeline.errors import JobError
from culm.pipeline.user_code.imports import called, load_callable


def test_a_module_that_the_job_s_own_imports_is_named_in_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_model.py").write_text("import not_installed_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    told = (
        r"'own_model' cannot be imported \(No module named 'not_installed_here'\); install not_installed_here, or run"
    )
    with pytest.raises(JobError, match=told):
        load_callable("own_model:layers", "model.layers")


def test_a_file_that_is_not_there_is_told_with_the_folder_it_was_looked_for_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError, match=rf"No such file.*data/x\.bin.*this process looks from {tmp_path}: run from"):
        called(open, {"file": "data/x.bin"}, "data.dataset")
    with pytest.raises(JobError, match=r"No such file.*; correct the code or its arguments$"):
        called(open, {"file": f"{tmp_path}/x.bin"}, "data.dataset")


def test_a_misspelt_module_is_guessed_among_the_jobs_own_files_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own ``wave`` was offered, though waves.py lay beside the job."""
    (tmp_path / "waves.py").write_text("")
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])
    with pytest.raises(JobError, match=r"did you mean waves\? else install it"):
        load_callable("wavez:layers", "model.layers")
    with pytest.raises(JobError, match=r"did you mean csv\? else install it"):
        load_callable("csvv:layers", "model.layers")
