"""Generates the committed stubs from the .proto files: `python -m culm.protos.generate [--check]`.

The generator is pinned and lives in a folder of its own. Stubs of a newer grpcio-tools demand the protobuf runtime
that it was built with, while those of 1.76.0 run on protobuf 6.31 and later; and grpcio-tools in the project's own
environment would hold the project's protobuf back.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "culm/protos"  # a link to protos/: the path of a file is its import
# The whole environment of the generator, installed without resolving: same pins, same bytes.
GENERATOR = ("grpcio-tools==1.76.0", "mypy-protobuf==5.1.0", "protobuf==6.33.6")
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


class GenerationError(Exception):
    """The stubs could not be generated; the text says why and the mend."""


def generator_home() -> Path:
    """Folder of the generator: inside the virtual environment in use, else in the temporary folder."""
    version = "-".join(pin.rpartition("==")[2] for pin in GENERATOR)
    python = f"{sys.version_info.major}{sys.version_info.minor}"
    base = Path(sys.prefix) if sys.prefix != sys.base_prefix else Path(tempfile.gettempdir())
    return base / f"culm-protoc-{version}-py{python}"


def install_generator(home: Path) -> None:
    """Installs the pinned generator into `home` unless it is there; two processes may do so at once."""
    if home.exists():
        return
    # Built aside and renamed, so that a folder of that name is always whole.
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=f"{home.name}.") as building:
        target = Path(building) / "generator"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run([*pip, "--target", str(target), *GENERATOR], mend="check the network and pip, then run it again")
        try:
            target.rename(home)
        except OSError:
            if not home.exists():
                raise


def run(command: Sequence[str], mend: str, env: Mapping[str, str] | None = None) -> None:
    """Runs a command from the repository root. Raises GenerationError with its output when it fails."""
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise GenerationError(f"{' '.join(command)} failed: {done.stdout.strip()}; {mend}")


def generate(out: Path) -> None:
    """Writes the stubs of all .proto files to `out`/culm/protos."""
    home = generator_home()
    install_generator(home)
    sources = sorted((ROOT / FOLDER).glob("*.proto"))
    services = [source for source in sources if "\nservice " in source.read_text(encoding="utf-8")]
    # The generator's protobuf must win over the environment's: PYTHONPATH comes before site-packages.
    env = {**os.environ, "PYTHONPATH": str(home)}
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-I."]
    plugins = [f"--plugin={name}={home / 'bin' / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    # Paths relative to the root make the stubs say `from culm.protos import ...`, the name by which they are imported.
    messages = [f"--python_out={out}", f"--mypy_out=quiet:{out}", *(f"{FOLDER}/{source.name}" for source in sources)]
    stubs = [f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}", *(f"{FOLDER}/{s.name}" for s in services)]
    for outputs in (messages, stubs):
        run([*protoc, *plugins, *outputs], mend="mend the .proto file, or delete " + str(home), env=env)


def stubs_in(folder: Path) -> dict[str, bytes]:
    """The generated files in a folder: name -> content."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name.endswith(SUFFIXES)}


def differing(fresh: Mapping[str, bytes], committed: Mapping[str, bytes]) -> list[str]:
    """One line for each stub that is not what the .proto files make."""
    lines = []
    for name in sorted(fresh.keys() | committed.keys()):
        if name not in committed:
            lines.append(f"{FOLDER}/{name} is missing")
        elif name not in fresh:
            lines.append(f"{FOLDER}/{name} comes from no .proto file")
        elif fresh[name] != committed[name]:
            lines.append(f"{FOLDER}/{name} differs from what its .proto file makes")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m culm.protos.generate", description="Generate the committed stubs.")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 when a stub differs")
    check: bool = parser.parse_args(arguments).check
    with tempfile.TemporaryDirectory(prefix="culm-stubs-") as folder:
        out = Path(folder)
        try:
            generate(out)
        except GenerationError as error:
            print(error, file=sys.stderr)
            return 2
        fresh, committed = stubs_in(out / FOLDER), stubs_in(ROOT / FOLDER)
        differences = differing(fresh, committed)
        if check:
            for line in differences:
                print(f"{line}: run `python -m culm.protos.generate`", file=sys.stderr)
            return 1 if differences else 0
        for name in committed.keys() - fresh.keys():
            (ROOT / FOLDER / name).unlink()
        for name in fresh:
            shutil.copyfile(out / FOLDER / name, ROOT / FOLDER / name)
    for line in differences or ["nothing changed"]:
        print(line if not differences else f"{line}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
