"""Why a layer or the loss is refused: the errors for what a node could not do again, or elsewhere."""

from culm.pipeline.errors import JobError

DENSE = "use a dense one: nodes send, copy and compare nothing else"

NOT_DETERMINISTIC = " does not have a deterministic implementation"  # so torch says it
# What has one on a card, by how torch names what has none there.
DETERMINISTIC = {
    "nll_loss2d": "cross_entropy over [B * T, C] in place of [B, C, T]",
    "adaptive_avg_pool2d": "AvgPool2d in place of AdaptiveAvgPool2d",
    "max_unpool": "interpolate in place of MaxUnpool",
}


def mend_of_chance(error: BaseException) -> str:
    """What to do where torch has no kernel with the same bits each time; nothing for any other error."""
    said = str(error)
    if NOT_DETERMINISTIC not in said:
        return ""
    known = next((f", such as {other}" for name, other in DETERMINISTIC.items() if said.startswith(name)), "")
    return f"its bits may vary, so use an operation that has one{known}; or compute on the CPU with job.threads = 1"


def begins_with_nan(layer: str, loss: float) -> JobError:
    """The error for a run that would stop in its first step. ``layer``: the first that returns NaN, if any."""
    if layer:
        what = f"{layer} returns nan for the first microbatch, whose samples have none, and the loss is {loss}"
        return JobError(what, "model.layers", "correct the layer, or the values that its parameters begin with")
    what = f"the loss is {loss} for the first microbatch, though no layer returns nan"
    return JobError(what, "train.loss", "correct it, or what it is given")


def returned_odd(layer: str, what: object) -> JobError:
    """The error for a layer that returns what no other node can be given. ``what``: in words."""
    mend = "let it return a tensor, or tensors in tuples, lists, dicts, named tuples or dataclasses"
    return JobError(f"{layer} returned {what}, not a tensor", "model.layers", mend)


def writes_over(layer: str) -> JobError:
    """The error for a layer that hands on memory of its own, such as a workspace, and uses that again."""
    what = f"the next forward of {layer} writes over what it has returned: it may be sent, or used, after that"
    return JobError(what, "model.layers", "return memory that is made anew by each forward, as by .clone()")


def changes_parameter(layer: str, parameter: str) -> JobError:
    """The error for a forward or backward that writes into a parameter."""
    what = f"{layer} changes its parameter {parameter} itself: copies of it on other nodes would come apart"
    mend = (
        "leave parameters to the optimizer: keep in a buffer what forwards change, and do without Embedding's max_norm"
    )
    return JobError(what, "model.layers", mend)


def changes_buffer(layer: str, buffer: str) -> JobError:
    """The error for a buffer that a forward adds, drops, or gives another shape or dtype."""
    what = f"a forward of {layer} makes its buffer {buffer} anew, or changes its shape or dtype"
    mend = "make it in the constructor as it stays; a cache may be a plain attribute"
    return JobError(what, "model.layers", mend)


def names_buffer_twice(layer: str, buffer: str) -> JobError:
    """The error for a buffer that goes on under another name where a node puts another tensor in its place."""
    what = f"{layer} keeps its buffer {buffer} under another name too, and uses both: nodes exchange a buffer's tensor"
    return JobError(what, "model.layers", "use it by its one name, and take views of it within the forward")


def reads_late(name: str, part: str, where: str) -> JobError:
    """The error for a backward that finds in the module what a later forward has left. ``part``: the gradient."""
    what = f"{name} gives another {part} once a later forward has run: its backward reads what forwards keep in it"
    mend = "pass the backward what it needs: as checkpoint()'s argument, by ctx.save_for_backward, in a hook's closure"
    return JobError(what, where, mend)


def changes_buffers_late(layer: str) -> JobError:
    """The error for a backward that writes into buffers."""
    what = f"the backward of {layer} changes its buffers: their values would depend on where the model is cut"
    return JobError(what, "model.layers", "keep what changes buffers, such as a BatchNorm, out of checkpoint()")


def draws_in_backward(name: str, generator: str, where: str) -> JobError:
    """The error for random numbers that nobody seeds. ``generator``: whose they are."""
    what = f"{name} draws random numbers from {generator} generator, which is seeded for forwards alone"
    mend = "draw them in the forward and keep them; torch's checkpoint() restores torch's generator, and no other"
    return JobError(what, where, mend)


def writes_into_overlap(layer: str) -> JobError:
    """The error for a layer that writes into elements of which several are one: a copy's gradient has other bits."""
    what = f"{layer} writes into its input, in which several elements are one in memory"
    return JobError(what, "model.layers", "let the layer before it return a copy (.contiguous())")


def hooks_input(layer: str) -> JobError:
    """The error for a layer with a hook on the very tensor that it is given: a layer before it may use that, too."""
    what = f"{layer} registers a hook on its input, which would see the gradients of other layers' uses of it as well"
    mend = "register it on a tensor of the layer's own, such as x = x.view_as(x)"
    return JobError(what, "model.layers", mend)


def writes_gradient(name: str, where: str) -> JobError:
    """The error for a backward, or a hook in it, that changes the gradient it is given: an heir may still need it."""
    what = f"{name} writes into the gradient that it is given"
    return JobError(what, where, "let a Function or a hook return a new tensor, and write into no gradient")


def uses_stranger(layer: str, shape: tuple[int, ...]) -> JobError:
    """The error for a tensor that waits for a gradient, and that no optimizer knows."""
    what = f"{layer} uses a tensor of shape {list(shape)} that requires a gradient and is no parameter of the layer"
    mend = "register it, as self.weight = embedding.weight, which makes it one with the other layer's; or detach it"
    return JobError(what, "model.layers", f"{mend}: it would never be trained")


def gives_sparse(layer: str, parameter: str) -> JobError:
    """The error for a gradient that is no dense tensor."""
    what = f"the gradient of {parameter} of {layer} is sparse, and nodes add up dense ones alone"
    return JobError(what, "model.layers", "use Embedding with sparse=False")


def no_loss(given: object) -> JobError:
    """What a loss returned that is no tensor of one number."""
    if isinstance(given, int | float):
        what = f"the loss is a {type(given).__name__}, not a tensor"
        return JobError(what, "train.loss", "return the tensor itself, without item")
    mend = 'return the mean over the microbatch, or set train.reduction to "sum" and return (sum, count)'
    return JobError("the loss is not a single number", "train.loss", mend)
