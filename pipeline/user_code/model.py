"""The job's model: its layers, any of which any node can build, and the loss, optimizer and dataset beside them."""

import copy
import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from culm.pipeline.errors import JobError
from culm.pipeline.identity import Identity
from culm.pipeline.job import Job, job_to_toml
from culm.pipeline.ties import Ties
from culm.pipeline.user_code import optimizers
from culm.pipeline.user_code.again import made_again
from culm.pipeline.user_code.compiling import compiled, refuse_compiled
from culm.pipeline.user_code.configuration import configuration_of, configurations
from culm.pipeline.user_code.data import dataset_of
from culm.pipeline.user_code.devices import settle
from culm.pipeline.user_code.fingerprint import parts_of
from culm.pipeline.user_code.forwards import cast_layer
from culm.pipeline.user_code.groups import Groups, Options, groups_of
from culm.pipeline.user_code.imports import RAISED, called, load_callable
from culm.pipeline.user_code.optimizers import OWN
from culm.pipeline.user_code.outline import Outline
from culm.pipeline.user_code.schedules import LayerSchedule, Schedule, scheduler_over
from culm.pipeline.user_code.sharing import kept_between, shared_between, tensors_of
from culm.pipeline.user_code.streams import layer_seed, seed_all
from culm.pipeline.user_code.tied import (
    Group,
    Place,
    Shared,
    by_identity,
    by_label,
    by_name,
    in_words,
    refuse_unlike,
    ties_of,
    together,
)
from culm.pipeline.user_code.uncopyable import no_copy, refuse_expanded, refuse_hooks, refuse_lazy, refuse_state

# A layer's initial values must not depend on the node that builds it, nor on what was built before:
#
#     a module in the list        the factory made it, under the job's seed; each build is a deep copy of it
#     a constructor in the list   each build calls it, under a seed of the job's and of this layer alone
#
# Only constructors let a node build its own layers without the memory that the whole model takes.

Constructor = Callable[[], nn.Module]


class ModelSource:
    """Builds any layer of the job's model at its initial state. ``layers`` is called under the job's seed."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.loss = load_callable(job.train.loss, "train.loss")
        self._optimizer = load_callable(job.train.optimizer, "train.optimizer")
        self._dataset = load_callable(job.data.dataset, "data.dataset")
        self._factory = load_callable(job.model.layers, "model.layers")
        if job.graph is not None:  # tensor workers make no graph, and have the same files all the same
            load_callable(job.graph.data, "graph.data")
        train = job.train
        self._grouping = load_callable(train.groups, "train.groups") if train.groups else None
        self._scheduler = load_callable(train.schedule, "train.schedule") if train.schedule else None
        self._groups: Groups | None = None  # once they were asked for
        self._schedule: Schedule | None = None
        self._constant_rate: float | None = None  # the learning rate, where no schedule changes it
        settle(job)
        made = self._made()
        self._layers: Sequence[nn.Module | Constructor] = made
        for index, layer in enumerate(self._layers):
            if not callable(layer):
                what = f"layer {index} is a {type(layer).__name__}, neither a module nor a constructor"
                raise JobError(what, f"model.layers, {job.model.layers}", "return nn.Modules or functools.partials")
        if not self._layers:
            raise JobError("the callable returned no layers", f"model.layers, {job.model.layers}", "return one or more")
        if len(self._layers) < job.pipeline.stages:
            what = f"the model has {len(self._layers)} layers, too few for {job.pipeline.stages} stages"
            raise JobError(what, "pipeline.stages", f"set it to {len(self._layers)} or less")
        self._outlines: tuple[Outline, ...] | None = None
        self._configurations: tuple[str, ...] = ()  # of each layer, once its outline is known
        ready = {i: layer for i, layer in enumerate(self._layers) if isinstance(layer, nn.Module)}
        self.tied = self._tied(made, ready)
        # Of parameters that an earlier layer has, too: their place there.
        self.firsts: dict[Place, Place] = {place: group[0] for group in self.tied for place in group[1:]}
        self._shared: list[Shared] | None = None
        shared = shared_between(ready, self.firsts)
        if shared is not None:
            one, other = sorted(shared, key=lambda extent: extent.layer)
            what = f"layers {one.layer} and {other.layer} share memory: {one.name} and {other.name}"
            raise JobError(what, f"model.layers, {job.model.layers}", "give each layer tensors of its own")

    def _made(self) -> list[Any]:
        """What the job's callable gives, under the job's seed."""
        seed_all(self._job.job.seed)
        made = called(self._factory, copy.deepcopy(self._job.model.args), "model.layers")  # it may write into them
        settle(self._job)
        if not isinstance(made, nn.Sequential | list | tuple):
            what = f"the callable returned a {type(made).__name__}, not a list of layers"
            raise JobError(what, f"model.layers, {self._job.model.layers}", "return an nn.Sequential or a list")
        return [cast_layer(self._job, layer) if isinstance(layer, nn.Module) else layer for layer in made]

    def _tied(self, made: list[Any], ready: Mapping[int, nn.Module]) -> tuple[Group, ...]:
        """The parameters that several layers use. Raises JobError."""
        return together([*by_identity(ready), *by_label(made), *by_name(self._job.model.tied, len(made))])

    @property
    def ties(self) -> Ties:
        """What follows from them for sums. Raises JobError where they cannot be one."""
        return tuple(shared.tie for shared in self._all_shared())

    def _all_shared(self) -> list[Shared]:
        if self._shared is None:
            sketches = {layer: self.sketch(layer) for layer in {layer for group in self.tied for layer, _ in group}}
            refuse_unlike(self.tied, sketches)
            self._shared = ties_of(self.tied, sketches, self._job.pipeline.pipelines)
        return self._shared

    def shared_with(self, index: int) -> list[Shared]:
        """How the layer's gradient adds to those of earlier layers."""
        return [shared for shared in self._all_shared() if shared.tie.layer == index]

    def shared_places(self, index: int) -> frozenset[int]:
        """Of the layer's own buckets, those to which later layers add."""
        of_first = (shared.tie.places for shared in self._all_shared() if shared.tie.first == index)
        return frozenset(place for places in of_first for place in places)

    @property
    def layer_count(self) -> int:
        return len(self._layers)

    def build(self, index: int) -> nn.Module:
        """The layer at its initial state, in training mode; a module of its own at every call."""
        module = self._built(index)
        earlier = {first for (layer, _), (first, _) in self.firsts.items() if layer == index}
        for first in sorted(earlier):
            self._begin_alike(index, module, first)
        return compiled(self._job, module)

    def _begin_alike(self, index: int, module: nn.Module, first: int) -> None:
        """Parameters that an earlier layer has, too, begin with the values that they have there."""
        alone = self._built(first)
        pairs = [(there, here) for here, there in self.firsts.items() if (there[0], here[0]) == (first, index)]
        refuse_unlike(pairs, {first: alone, index: module})
        with torch.no_grad():
            for (_, known), (_, name) in pairs:
                given, own = alone.get_parameter(known), module.get_parameter(name)
                if not given.is_meta:  # a sketch has no values
                    own.copy_(given)

    def _built(self, index: int) -> nn.Module:
        layer = self._layers[index]
        if isinstance(layer, nn.Module):
            refuse_lazy(layer, index)
            refuse_compiled(layer, index)
            try:
                return copy.deepcopy(layer).train()
            except RAISED as error:
                raise no_copy(layer, index, error) from error
        seed_all(layer_seed(self._job.job.seed, index))
        module = called(layer, {}, f"model.layers, layer {index}")
        settle(self._job)
        if not isinstance(module, nn.Module):
            what = f"the constructor of layer {index} returned a {type(module).__name__}, not an nn.Module"
            raise JobError(what, f"model.layers, {self._job.model.layers}", "let it return an nn.Module")
        refuse_lazy(module, index)
        refuse_compiled(module, index)
        return cast_layer(self._job, module).train()

    def outlines(self) -> tuple[Outline, ...]:
        """What each layer consists of, known without allocating what constructors make.

        Raises JobError for a layer that keeps tensors between two constructions.
        """
        if self._outlines is None:
            sketches = [self._sketches(index) for index in range(self.layer_count)]
            outlines, found = [], []
            for (layer, again), ready in zip(sketches, made_again(self._made, self._layers), strict=True):
                outlines.append(Outline.of(layer))
                found.append(configuration_of(layer, ready if layer is again else again))
            self._outlines, self._configurations = tuple(outlines), tuple(found)
        return tuple(map(self._with_ties, count(), self._outlines))

    def sketched(self, index: int) -> str:
        """Names, dtypes and shapes of the layer as it is built without values."""
        self.outlines()
        assert self._outlines is not None
        return self._outlines[index].text

    def _with_ties(self, index: int, outline: Outline) -> Outline:
        """A layer whose parameters are tied otherwise is another one."""
        tied = [f", tie {name}={in_words(first)}" for (layer, name), first in self.firsts.items() if layer == index]
        return replace(outline, text="".join([outline.text, *tied]))

    def optimizers(self) -> list[str]:
        """The optimizers that train parameters: the job's own as OWN, others by name. Raises JobError."""
        return self.groups().optimizers if self._grouping is not None else [OWN]

    def alone(self, name: str, parameters: Sequence[torch.Tensor], group: int = 0) -> torch.optim.Optimizer:
        """One of them, over these parameters, as the first of its groups is made, or another. Raises JobError."""
        options = self.groups().options_for(name)[group] if name != OWN else {}
        return self._one(name, [{"params": [*parameters], **options}] if options else [*parameters])

    def parameters_like(self, name: str = OWN) -> list[torch.Tensor]:
        """Parameters that the optimizer trains, one for each dtype and number of dimensions; without values."""
        kinds: Mapping[tuple[torch.dtype, int], tuple[int, ...]]
        if self._grouping is not None:
            kinds = self.groups().shapes.get(name, {})
        else:
            kinds = {(dtype, len(shape)): shape for o in self.outlines() for shape, dtype in o.trained}
        return [torch.empty(shape, dtype=dtype, device="meta") for (dtype, _), shape in sorted(kinds.items(), key=str)]

    def parameter_counts(self) -> list[int]:
        """Parameters of each layer."""
        return [outline.parameters for outline in self.outlines()]

    def sketch(self, index: int) -> nn.Module:
        """The layer, for its names and shapes alone: without values where its constructor needs none."""
        return self._sketches(index)[0]

    def _sketches(self, index: int) -> tuple[nn.Module, nn.Module]:
        """The layer as ``sketch`` gives it, built twice; a ready-made one is the same module both times."""
        layer = self._layers[index]
        if isinstance(layer, nn.Module):
            refuse_lazy(layer, index)
            refuse_compiled(layer, index)
            refuse_state(layer, index)
            refuse_hooks(layer, index)
            refuse_expanded(layer, layer.named_buffers(), index)  # torch copies parameters without that
            return layer, layer
        try:
            with torch.device("meta"):
                module, again = self.build(index), self.build(index)
        except JobError:  # it may look at values while it builds
            module, again = self.build(index), self.build(index)
        kept = kept_between(module, again)
        if kept:
            raise self.keeps(index, kept)
        refuse_state(module, index)
        refuse_expanded(module, tensors_of(module), index)
        return module, again

    def keeps(self, index: int, name: str) -> JobError:
        """The error for a tensor that is the same object each time the layer is built."""
        what = f"layer {index} shares its {name} with every layer that its constructor builds, or with another layer"
        mend = (
            "make the tensor within the constructor, or clone it there; if layers are to train one parameter, name it "
            f'in each: [model] tied = [["{index}.{name}", "LAYER.NAME"]]'
        )
        return JobError(what, f"model.layers, {self._job.model.layers}", mend)

    def groups(self) -> Groups:
        """The model's parameter groups. Raises JobError."""
        if self._groups is None:
            layers = ((index, self.sketch(index)) for index in range(self.layer_count))
            self._groups = groups_of(layers, self._grouping, self.firsts)
        return self._groups

    def group_number(self, layer: int, name: str) -> int:
        """Of a parameter that is trained, through the model. Raises JobError."""
        return self.groups().number(layer, name) if self._grouping is not None else 0

    def grouped(self, named: Iterable[tuple[int, str, torch.Tensor]]) -> list[torch.Tensor] | list[dict[str, Any]]:
        """Parameters to train, each with its layer and its name there, as an optimizer takes them: by group."""
        if self._grouping is None:
            return [parameter for _, _, parameter in named]
        found: dict[int, list[torch.Tensor]] = {}
        for layer, name, parameter in named:
            found.setdefault(self.group_number(layer, name), []).append(parameter)
        return [{"params": found[number], **self.groups().options[number]} for number in sorted(found)]

    def optimizer_of(
        self, index: int, module: nn.Module
    ) -> tuple[torch.optim.Optimizer | None, Sequence[Options], LayerSchedule | None]:
        """A layer's optimizer, the options of each of its groups, and their schedule; (None, {}, None) where nothing
        of the layer is trained. Raises JobError.
        """
        named = [(index, name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            return None, ({},), None
        numbers = self.groups().of_layer(index, module) if self._grouping is not None else [0]
        options = [self.groups().options[number] for number in numbers] if self._grouping is not None else [{}]
        schedule = self.schedule()
        scheduled = LayerSchedule(schedule, numbers) if schedule is not None else None
        return self.optimizer(self.grouped(named)), options, scheduled

    @property
    def average(self) -> float | None:
        """The decay of a moving average of the weights, if there is to be one."""
        return self._job.train.average

    def schedule(self) -> Schedule | None:
        """The job's schedule, by group of the model; None where options stay as they are. Raises JobError."""
        if self._scheduler is not None and self._schedule is None:
            self._schedule = Schedule(self._one_a_group, self.scheduler, self._job.job.steps)
        return self._schedule

    def learning_rate(self, step: int) -> float:
        """Of the model's first parameter group in the step; NaN where there is none. One thread asks."""
        schedule = self.schedule()
        if schedule is not None:
            return schedule.learning_rate(step)
        if self._constant_rate is None:
            groups = self._one_a_group().param_groups if self.groups().kinds else ()
            self._constant_rate = next((float(group.get("lr", math.nan)) for group in groups), math.nan)
        return self._constant_rate

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        """torch's own scheduler over an optimizer of the whole model, if the job names one. Raises JobError."""
        if self._scheduler is None:
            return None
        return scheduler_over(self._scheduler, self._job.train.schedule_args, optimizer)

    def _one_a_group(self) -> torch.optim.Optimizer:
        """The job's optimizer over one small parameter of each group of the model."""
        groups = self.groups()
        small = [torch.zeros([1] * dimensions, dtype=dtype, requires_grad=True) for dtype, dimensions in groups.kinds]
        if self._grouping is None:
            return self.optimizer(small)
        return self.optimizer({"params": [p], **own} for p, own in zip(small, groups.options, strict=True))

    def optimizer(self, parameters: Iterable[torch.Tensor | dict[str, Any]]) -> torch.optim.Optimizer:
        """The job's optimizer over these parameters, or groups of them."""
        return optimizers.together(list(parameters), self._one)

    def separate(self, parameters: Iterable[torch.Tensor | dict[str, Any]]) -> dict[str, torch.optim.Optimizer]:
        """The optimizers of these, or of groups of them, each on its own, by name; the job's own as OWN."""
        return optimizers.apart(list(parameters), self._one)

    def _one(self, name: str, parameters: list[torch.Tensor | dict[str, Any]]) -> torch.optim.Optimizer:
        """The optimizer of this name over them; the job's own with the arguments of the job."""
        if name == OWN:
            own, arguments = self._job.train.optimizer, self._job.train.optimizer_args
            made = called(self._optimizer, {"params": parameters, **arguments}, "train.optimizer_args")
        else:
            own = name  # made with the options of its first group, as one that has no others would be
            first = parameters[0] if isinstance(parameters[0], dict) else {}
            options = {option: value for option, value in first.items() if option != "params"}
            made = called(load_callable(name, "train.groups"), {"params": parameters, **options}, "train.groups")
        settle(self._job)
        if not isinstance(made, torch.optim.Optimizer):
            where = "train.optimizer" if name == OWN else "train.groups"
            raise JobError(f"{own!r} returns no optimizer", where, "name one that does")
        return made

    def dataset(self) -> Any:
        """The job's dataset, made under the job's seed."""
        return dataset_of(self._job)

    def identity(self) -> Identity:
        """All that the bits depend on: the job, its files, the user's code, versions, this machine, the layers."""
        outlines = tuple(outline.text for outline in self.outlines())
        parts = parts_of(self._job, self._sources())
        return Identity({**parts, "configuration": configurations(self._configurations)}, outlines)

    def fingerprint(self) -> str:
        """One hash of it and of the job, without this machine, whose kind may differ if the job says so.

        Without what layers are set to, too: it is a part of its own, which older versions do not tell.
        """
        parts = self.identity().without(["hardware", "configuration"]).parts
        text = "\n".join([job_to_toml(self._job), *(f"{part} {parts[part]}" for part in sorted(parts))])
        return hashlib.sha256(text.encode()).hexdigest()

    def _sources(self) -> set[tuple[str, Path]]:
        """(module, file) of the user's code: the packages that the job names, or that define what it names."""
        job = self._job
        named = {name.partition(":")[0] for name in (job.model.layers, job.data.dataset, job.train.loss)}
        data = job.graph.data if job.graph is not None else None
        for name in (job.train.optimizer, job.train.groups, job.train.schedule, job.data.collate, data):
            named |= {name.partition(":")[0]} if name else set()
        named |= {name.partition(":")[0] for name in self.optimizers() if name != OWN}
        named_once = [f for f in (self._grouping, self._scheduler) if f is not None]
        used = [*self._layers, self._factory, self._dataset, self.loss, self._optimizer, *named_once]
        named |= {m for made in used if (m := getattr(getattr(made, "func", made), "__module__", None))}
        roots = {_root(name) for name in named} - {"torch", "functools", "builtins"}
        found = set()
        for name, module in list(sys.modules.items()):
            source = getattr(module, "__file__", None)
            if _root(name) in roots and source and source.endswith(".py"):
                found.add((name, Path(source)))
        return found


def _root(module: str) -> str:
    """The package that is the user's as a whole. Of Culm's own it is the part that a job can name, as culm.examples."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "culm" else parts[0]
