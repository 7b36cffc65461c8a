"""Whether the targets of a decoder are moved by one token in all: by the dataset or by the loss, and not by both."""

# A run learns without an error either way. Where both move them it learns the token after the next one; where nobody
# does it learns to copy its input, with a loss that soon is near 0.

from collections.abc import Mapping

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.pytrees import Pytree

LAYERS = "culm.models.hf:layers"
MOVED = {f"culm.models.hf:next_token{end}": f"culm.models.hf:each_token{end}" for end in ("", "_sum")}
UNMOVED = {other: loss for loss, other in MOVED.items()}
ACCURACY, ACCURACY_OF_NEXT = "culm.metrics:token_accuracy", "culm.metrics:next_token_accuracy"


def refuse_shift(job: Job, section: str, x: Pytree, target: Pytree) -> None:
    """Raises JobError where a microbatch shows that the job's loss is the wrong one of each pair above."""
    tokens, loss = x.get("input_ids") if isinstance(x, Mapping) else x, job.train.loss
    if not (isinstance(tokens, torch.Tensor) and isinstance(target, torch.Tensor)):
        return
    if tokens.shape != target.shape or tokens.dim() != 2 or tokens.is_floating_point():
        return
    is_same, is_next = _agree(tokens, target), _agree(tokens[:, 1:], target[:, :-1])
    if is_same == is_next:  # tokens may be all alike
        return
    if is_next and loss in MOVED:
        what = f"the targets of {section}.dataset are the token after each already, and {loss} moves them once more"
        raise JobError(what, "train.loss", f'name "{MOVED[loss]}"')
    is_decoder = job.model.layers == LAYERS and job.model.args.get("head", "CausalLM") == "CausalLM"
    if is_same and loss in UNMOVED and is_decoder:
        what = f"the targets of {section}.dataset are the very tokens that the model is given: it would learn to copy"
        raise JobError(what, "train.loss", f'name "{UNMOVED[loss]}", which takes the token after each')


def refuse_copying(job: Job) -> None:
    """Raises JobError for a metric that counts how many tokens a decoder repeats, beside a loss of the next one."""
    asked = {"train": job.train.metrics, "evaluate": job.evaluate.metrics if job.evaluate is not None else {}}
    for section, metrics in asked.items():
        for name, metric in metrics.items() if job.train.loss in MOVED else ():
            if metric == ACCURACY:
                what = f"{metric} compares each token with itself, and {job.train.loss} with the one after it"
                raise JobError(what, f"{section}.metrics.{name}", f'name "{ACCURACY_OF_NEXT}"')


def _agree(tokens: torch.Tensor, target: torch.Tensor) -> bool:
    """Both [B, T]: whether they are the same wherever the target counts."""
    counts = target >= 0
    return bool(counts.any()) and torch.equal(tokens[counts], target[counts])
