"""Ray: the coordinator is a detached actor beside Ray's head, the stage servers are actors spread over the machines.

    culm up ──► Coordinator (actor, runs a coordinator and its Redis)
            └─► Stage 0 .. N-1 (actors, each runs a stage server and asks Coordinator where it listens)

Ray starts an actor again whose machine or process is gone (``max_restarts=-1``), as soon as a machine has room for it:
it comes back as a node that holds nothing. What is under ``engines.ray_actors`` runs there.
"""

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from culm.engines.command import last_words, refusals_of
from culm.engines.engine import Tell, Wish
from culm.engines.local import lines_of
from culm.engines.services import FAILED, await_coordinator, make_kit, packed
from culm.local import clusters
from culm.local.clusters import Record
from culm.pipeline import private
from culm.pipeline.errors import JobError

WHERE = "--on ray"
NAMESPACE = "culm"
COORDINATOR = "coordinator"
QUIET = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
MISSING = "its machines need Culm and your code: --with pip=..., --with working_dir=..., or in their image"
HEAD_SECONDS = 10.0
ANSWER_SECONDS = 20.0  # for an actor that runs; one that waits for a machine answers nothing


class RayCluster:
    more = "Ray starts each actor again as soon as a machine has room for it; for more of them start another cluster"
    options: Mapping[str, str] = {
        "address": "of Ray's head, HOST:PORT or auto; default: RAY_ADDRESS, else auto",
        "cpus": "of a stage server; default: the job's threads",
        "gpus": "of a stage server; default: 1 with device = cuda, else 0",
        "memory_gb": "of a stage server, for Ray to reserve; default: none",
        "resources": "other resources of Ray that a stage server needs, such as spot=1",
        "working_dir": "a folder that Ray brings to the machines, with your modules; default: none",
        "pip": "packages that Ray installs for them, by its virtualenv, separated by commas; default: none",
    }

    def up(self, folder: Path, wish: Wish, tell: Tell) -> Record:
        from culm.engines.ray_actors import Coordinator, Stage
        from culm.pipeline.job import load_job

        environment = _runtime_environment(wish.options)
        ray = connected(wish.options.get("address", ""), environment)
        make_kit(folder, wish, _paths(wish))
        record = Record(name=wish.name, job=wish.job, engine="ray", certificates=str(folder / "certs" / "operator"))
        job = load_job(folder / "job.toml", [])
        common = {"namespace": NAMESPACE, "lifetime": "detached", "max_restarts": -1}
        names = _names(wish)
        where = wish.options.get("address", "") or os.environ.get("RAY_ADDRESS", "") or "auto"
        record = replace(record, handles={**names, "address": where})
        clusters.write(folder, record)
        head = {"name": names[COORDINATOR], "num_cpus": 0, "scheduling_strategy": _beside_head(ray)}
        coordinator = ray.remote(Coordinator).options(**common, **head).remote(packed(folder, COORDINATOR))
        needs = _needs(wish.options, job.job.threads, job.job.device)
        for number in range(wish.nodes):
            made = ray.remote(Stage).options(name=names[f"n{number}"], scheduling_strategy="SPREAD", **common, **needs)
            made.remote(packed(folder, "stage"), number, names[COORDINATOR])

        def address() -> str:
            return str(_asked(ray, coordinator.address) or "")

        def state() -> str:
            said = str(_asked(ray, coordinator.state) or "has no machine yet")
            if said.startswith(FAILED):
                raise JobError(f"the coordinator {said}", WHERE, f"culm logs {wish.name}; see its Python environment")
            return f"waiting for Ray to start the coordinator and {wish.nodes} stage servers: the coordinator {said}"

        record = replace(record, address=await_coordinator(address, state, tell))
        clusters.write(folder, record)
        return record

    def plan(self, folder: Path, wish: Wish) -> str:
        from culm.pipeline.job import load_job

        job = load_job(folder / "job.toml", [])
        needs = json.dumps(_needs(wish.options, job.job.threads, job.job.device))
        environment = json.dumps(_runtime_environment(wish.options))
        lines = [f"actor {name} {'' if part == COORDINATOR else needs}" for part, name in _names(wish).items()]
        return "\n".join([*lines, f"runtime_env {environment}", ""])

    def refusals(self, folder: Path, wish: Wish) -> list[JobError]:
        return refusals_of([lambda: connected(wish.options.get("address", "")).shutdown()])

    def reach(self, folder: Path, record: Record) -> str:
        """Its actor knows: Ray may have started it again elsewhere."""
        ray = connected(record.handles.get("address", ""))
        try:
            actor = ray.get_actor(record.handles[COORDINATOR], NAMESPACE)
            return str(ray.get(actor.address.remote(), timeout=ANSWER_SECONDS)) or record.address
        except (ValueError, ray.exceptions.RayError):
            return record.address
        finally:
            ray.shutdown()  # else it prints what its cluster does, among what the command prints

    def parts(self, folder: Path, record: Record) -> Mapping[str, str]:
        ray = connected(record.handles.get("address", ""))
        try:
            return {part: _state(ray, name) for part, name in _actors(record).items()}
        finally:
            ray.shutdown()

    def logs(self, folder: Path, record: Record) -> Mapping[str, Callable[[], Iterator[str | None]]]:
        if not record.handles:
            return {file.stem: partial(lines_of, file) for file in sorted(folder.glob("*.log"))}
        ray = connected(record.handles["address"])
        return {part: partial(_lines, ray, name) for part, name in _actors(record).items()}

    def down(self, folder: Path, record: Record) -> list[str]:
        if not record.handles:
            return []
        ray = connected(record.handles["address"])
        actors = {}
        for part, name in _actors(record).items():
            with suppress(ValueError):  # no actor has this name
                actors[part] = ray.get_actor(name, NAMESPACE)
                private.write_text(
                    folder / f"{part}.log", "".join(f"{x}\n" for x in _lines(ray, name) if x is not None)
                )
        stopping = [actor.stop.remote() for actor in actors.values()]
        ray.wait(stopping, num_returns=len(stopping), timeout=ANSWER_SECONDS)
        for actor in actors.values():
            ray.kill(actor, no_restart=True)
        clusters.write(folder, replace(record, handles={}))
        return list(actors)


def _names(wish: Wish) -> dict[str, str]:
    """Of the actors, by part."""
    return {part: f"{wish.name}-{part}" for part in (COORDINATOR, *(f"n{i}" for i in range(wish.nodes)))}


def connected(address: str, environment: Mapping[str, Any] | None = None) -> Any:
    """The module ``ray``, connected to its cluster. Raises JobError.

    ``environment``: of what is started from here. Ray uploads a folder as it connects, and not for a single actor.
    """
    try:
        import ray
    except ImportError as error:
        raise JobError("Ray is not installed", WHERE, "pip install 'culm[ray]'") from error
    if not ray.is_initialized():
        where = address or os.environ.get("RAY_ADDRESS", "") or "auto"
        _refuse_silent(where)
        try:
            ray.init(where, runtime_env=dict(environment or {}), **QUIET)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first = str(error).strip().partition("\n")[0]
            raise JobError(
                f"Ray does not answer ({first})", WHERE, "name its head: --with address=HOST:PORT"
            ) from error
    return ray


def _refuse_silent(address: str) -> None:
    """Raises JobError where nobody listens: Ray itself asks again for minutes, and prints that it does."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdigit():
        return
    try:
        with socket.create_connection((host, int(port)), HEAD_SECONDS):
            pass
    except OSError as error:
        mend = "start its head, or name the right one: --with address=HOST:PORT, or RAY_ADDRESS"
        raise JobError(f"no head of Ray listens at {address} ({error.strerror or error})", WHERE, mend) from error


def _runtime_environment(options: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if folder := options.get("working_dir"):
        if "://" not in folder and not Path(folder).is_dir():
            raise JobError("there is no such folder", f"--with working_dir={folder}", "name the one with your modules")
        found["working_dir"] = folder
    if packages := options.get("pip"):
        found["pip"] = [each.strip() for each in packages.split(",")]
    return found


def _paths(wish: Wish) -> tuple[str, ...]:
    """Where the user's modules lie on the machines: what is below ``working_dir`` lies in an actor's current folder."""
    here = (Path.cwd(), wish.job_folder)
    brought = wish.options.get("working_dir", "")
    if not brought or "://" in brought:
        return tuple(map(str, here))
    root = Path(brought).resolve()
    return tuple(str(each.relative_to(root) if each.is_relative_to(root) else each) for each in here)


def _needs(options: Mapping[str, str], threads: int, device: str) -> dict[str, Any]:
    """What Ray reserves for a stage server. Raises JobError."""
    try:
        needs: dict[str, Any] = {
            "num_cpus": float(options.get("cpus", threads)),
            "num_gpus": float(options.get("gpus", 1 if device == "cuda" else 0)),
        }
        if gigabytes := options.get("memory_gb"):
            needs["memory"] = float(gigabytes) * 1e9
        pairs = (each.partition("=") for each in options.get("resources", "").split(",") if each.strip())
        if resources := {name.strip(): float(amount or 1) for name, _, amount in pairs}:
            needs["resources"] = resources
    except ValueError as error:
        raise JobError(f"an amount is not a number ({error})", "--with", "write cpus=2, or resources=spot=1") from error
    return needs


def _beside_head(ray: Any) -> Any:
    """On the machine of Ray's head, which is the one that has to stay; elsewhere where that has no room."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    heads = [node for node in ray.nodes() if node["Alive"] and "node:__internal_head__" in node["Resources"]]
    return NodeAffinitySchedulingStrategy(heads[0]["NodeID"], soft=True) if heads else "DEFAULT"


def _asked(ray: Any, method: Any) -> Any:
    """What an actor answers; None: it is not there yet, or is just being started again. Raises JobError."""
    try:
        return ray.get(method.remote(), timeout=ANSWER_SECONDS)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
        return None
    except ray.exceptions.RayError as error:  # its environment cannot be made, or its code cannot be imported there
        said = last_words(str(error).splitlines())
        told = isinstance(error, ray.exceptions.RuntimeEnvSetupError)
        mend = "mend what it says, on Ray's machines" if told else MISSING
        raise JobError(f"Ray cannot start the coordinator: {said}", WHERE, mend) from error


def _actors(record: Record) -> dict[str, str]:
    return {part: name for part, name in record.handles.items() if part != "address"}


def _state(ray: Any, name: str) -> str:
    try:
        actor = ray.get_actor(name, NAMESPACE)
        return str(ray.get(actor.state.remote(), timeout=ANSWER_SECONDS))
    except ValueError:
        return "ended"
    except ray.exceptions.GetTimeoutError:
        return "waiting for a machine"
    except ray.exceptions.RayError as error:
        return f"restarting ({type(error).__name__})"


def _lines(ray: Any, name: str) -> Iterator[str | None]:
    with suppress(ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
        before, lines = ray.get(ray.get_actor(name, NAMESPACE).lines.remote(), timeout=ANSWER_SECONDS)
        yield from repeat(None, before)
        yield from lines
