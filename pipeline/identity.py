"""What the bits of a run depend on, part by part: the nodes of a run agree on it, and so do a run and its checkpoint.

Everything that changes the bits is in one of the parts (rule 23); what is in none changes no bit: the number of steps,
stages, nodes and zones, the schedule, the resilience, where checkpoints go. Knows nothing of tensors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from culm.pipeline.errors import JobError
from culm.pipeline.identity_parts import OF_MACHINES, PARTS
from culm.pipeline.job import Job

# Which keys of the job file are in which part; a section's star stands for its other keys. A key that is not here, or
# is in the part "", changes no bit: tokens_per_sample counts money alone. Microbatches and pipelines are data, since
# they decide which samples make up a step, and in which order gradients are added up.
_KEYS: Mapping[str, Mapping[str, str]] = {
    "job": {"seed": "train", "threads": "hardware", "device": "hardware"},
    "model": {"*": "model"},
    "data": {"*": "data", "tokens_per_sample": "", "workers": ""},
    "train": {"*": "train", "activation_checkpointing": "", "average": "", "metrics": ""},
    "pipeline": {"microbatches": "data", "pipelines": "data"},
    "graph": {"staleness": "train", "refresh": "train", "fresh_at_end": "train"},
}
# Of these the last two change no bit while no value is old.
_WITH_STALENESS = frozenset({"graph.refresh", "graph.fresh_at_end"})

FROZEN = " frozen"  # behind a parameter in an outline: it is not trained


@dataclass(frozen=True)
class Identity:
    """``parts``: a hash by part, or words where a user can tell what differs (versions, hardware). ``outlines``: names,
    dtypes and shapes of each layer's tensors. What is not known is left out. ``tells_frozen``: the outlines say which
    parameters are not trained; those of checkpoints of old do not.

    A part says what it holds where it is made: ``culm.pipeline.user_code.fingerprint``, ``configuration``, ``samples``.
    ``lineage``: of a checkpoint, the sha256 of the one that its run was resumed from with something changed; empty: it
    follows from step 0 of its own job.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    outlines: tuple[str, ...] = ()
    lineage: str = ""
    tells_frozen: bool = True

    def without(self, parts: Iterable[str]) -> "Identity":
        dropped = set(parts)
        return replace(self, parts={k: v for k, v in self.parts.items() if k not in dropped})

    def compared(self, same_hardware: bool) -> "Identity":
        """What nodes of one run have to agree on."""
        return self if same_hardware else self.without(OF_MACHINES)

    def agrees(self, other: "Identity") -> bool:
        """Whether both are of one run: every part is the same that both tell. A part may be newer than one of them."""
        both = self.parts.keys() & other.parts.keys()
        return self.lineage == other.lineage and all(self.parts[part] == other.parts[part] for part in both)


class Change(NamedTuple):
    """A key of the job file that is not as it was."""

    part: str
    key: str
    then: Any
    now: Any


def keys_of(job: Job) -> dict[str, tuple[str, Any]]:
    """(part, value) of every key on which bits depend; those of ``args`` one by one."""
    out: dict[str, tuple[str, Any]] = {}
    for section, content in job.model_dump(exclude_none=True).items():
        known = _KEYS.get(section, {})
        for key, value in content.items():
            part = known.get(key, known.get("*", ""))
            if part and isinstance(value, dict):
                out |= {f"{section}.{key}.{name}": (part, each) for name, each in value.items()}
            elif part:
                out[f"{section}.{key}"] = (part, value)
    return out


def changes(then: Job, now: Job) -> list[Change]:
    """What differs between two jobs and changes the bits."""
    before, after = keys_of(then), keys_of(now)
    unused = frozenset() if then.staleness.most or now.staleness.most else _WITH_STALENESS
    out = []
    for key in sorted({*before, *after} - unused):
        part = (before.get(key) or after[key])[0]
        old, new = before.get(key, (part, None))[1], after.get(key, (part, None))[1]
        if not same_values(old, new):
            out.append(Change(part, key, old, new))
    return out


def same_values(one: Any, other: Any) -> bool:
    """Of the same types throughout: 1, 1.0 and True are equal, as 0.0 and -0.0 are, and code may tell them apart."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_values(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_values, one, other))
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)


def refuse_changes(
    then: Job, now: Job, allowed: Iterable[str], where: str, whose: str = "the checkpoint", mend: str = ""
) -> None:
    """Raises JobError, naming a key, where ``now`` differs from ``then`` in a part that is not ``allowed``.

    ``whose``: where the job ``then`` stands, for the text. Without ``mend`` the text names ``--allow``.
    """
    let = {*allowed, *(["hardware"] if now.job.hardware == "any" else [])}
    found = [change for change in changes(then, now) if change.part not in let]
    if found:
        first = found[0]
        more = f" (and {len(found) - 1} more: {', '.join(c.key for c in found[1:4])})" if len(found) > 1 else ""
        what = f"{first.key} is {_shown(first.now)} in this job, and {_shown(first.then)} in {whose}'s{more}"
        parts = ",".join(part for part in PARTS if part in {change.part for change in found})
        raise JobError(what, where, mend or f"set it back, or let it differ with --allow {parts}")


def refuse_other_ages(then: Job, now: Job, step: int, allowed: Iterable[str], where: str) -> None:
    """Raises JobError where chunks of a graph took, or would take, values of another age than in one undisturbed run.

    ``then``: the job of the checkpoint of this step. No key differs that ``refuse_changes`` refuses. What epochs before
    the step gave lies in no checkpoint, and with more steps the fresh epochs at the end come later.
    """
    if "train" in allowed:
        return
    old, new = then.staleness, now.staleness
    mend = "or let it differ with --allow train"
    if new.lag(step):
        what = f"epoch {step} takes values of epochs before, which are in no checkpoint"
        raise JobError(what, where, f"resume from a step that is a multiple of {new.refresh}, {mend}")
    first = min(old.fresh_from, new.fresh_from)
    if old.fresh_from != new.fresh_from and step > first:
        what = f"the last epochs are fresh from step {new.fresh_from} on in this job, and were from {old.fresh_from} on"
        what += f" in the run that wrote the checkpoint of step {step}"
        raise JobError(what, where, f"resume from step {first - first % new.refresh} or before, {mend}")


def difference(then: Job, now: Job) -> str:
    """A key of the job file that is not as it was, with both values, whether bits depend on it or not; "" if none."""
    before, after = (
        {
            f"{section}.{key}": value
            for section, content in job.model_dump().items()
            for key, value in (content or {}).items()
        }
        for job in (then, now)
    )
    for key in sorted({**before, **after}):
        if before.get(key) != after.get(key):
            return f"{key} is {_shown(after.get(key))}, and was {_shown(before.get(key))}"
    return ""


def options_changed(then: Job, now: Job) -> frozenset[str] | None:
    """The optimizer's options that are not as they were; None where it is another optimizer."""
    if then.train.optimizer != now.train.optimizer:
        return None
    prefix = "train.optimizer_args."
    return frozenset(c.key.removeprefix(prefix) for c in changes(then, now) if c.key.startswith(prefix))


def _shown(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---- as plain data --------------------------------------------------------------------------------------------------


def identity_to(identity: Identity) -> dict[str, Any]:
    """JSON-able; an outline that many layers have stands in it once."""
    distinct = list(dict.fromkeys(identity.outlines))
    number = {outline: i for i, outline in enumerate(distinct)}
    return {
        "parts": dict(identity.parts),
        "outlines": distinct,
        "outline_of": [number[outline] for outline in identity.outlines],
        "lineage": identity.lineage,
        "tells_frozen": identity.tells_frozen,
    }


def identity_from(content: Any) -> Identity:
    """Raises ValueError, KeyError or TypeError for what ``identity_to`` does not give."""
    if content is None:
        return Identity()
    distinct = [str(outline) for outline in content["outlines"]]
    places = [int(i) for i in content["outline_of"]]
    if any(not 0 <= i < len(distinct) for i in places):
        raise ValueError("a layer has an outline that is not listed")
    parts = {str(part): str(value) for part, value in dict(content["parts"]).items() if part in PARTS}
    outlines, lineage = tuple(distinct[i] for i in places), str(content.get("lineage", ""))
    return Identity(parts, outlines, lineage, bool(content.get("tells_frozen")))
