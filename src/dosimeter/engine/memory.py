"""What local training takes until it is differentiated, and how it takes less."""

import math

import torch

from dosimeter.engine.threads import twice_differentiable
from dosimeter.types import Held, Target, call

TRIED = 2  # candidates that are trained at once at least, to see whether they can be
FEW = 4  # images of a batch on which ways are compared: written out, a whole one takes far more than a step does
COMPARED = 8  # copies of all weights that an update and its comparison take, whatever led to it
AROUND = 1.55  # what a candidate keeps under `vmap`, in units of what plain autograd does


def training(target: Target, held: Held, weights: int, passes: int, room: int) -> tuple[int, int | None]:
    """Numbers that one candidate takes, and the steps whose insides it holds at once; None is all of them.

    A step keeps activations and weights. Where these do not fit into `room` for all steps, weights are kept after every
    stretch of steps and its inside is computed again, stretch by stretch, on the way back.
    """
    steps = max(passes, held.steps)
    inside = held.weights * weights + AROUND * held.images * saved(target)
    outside = AROUND * held.state * weights

    def numbers(stretch: int) -> int:
        return round(
            COMPARED * weights + stretch * inside + (0 if stretch >= steps else -(-steps // stretch) * outside)
        )

    if numbers(steps) <= room or steps == 1:
        return numbers(steps), None
    stretch = max(1, min(steps, round(math.sqrt(steps * outside / inside))))
    return numbers(stretch), stretch


def saved(target: Target) -> float:
    """Numbers that autograd keeps of one image until a gradient is differentiated, but for the weights."""
    images = 2  # batch norm with the statistics of its batch refuses one
    leaves = {name: p.requires_grad_() for name, p in target.parameters.items()}
    x = torch.zeros(images, *target.shape, dtype=target.mean.dtype, device=target.mean.device, requires_grad=True)
    seen: dict[int, torch.UntypedStorage] = {}
    boxes: list[list[torch.Tensor]] = []

    def note(tensor: torch.Tensor) -> list[torch.Tensor]:
        memory = tensor.untyped_storage()
        seen[memory.data_ptr()] = memory
        boxes.append([tensor])
        return boxes[-1]

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda box: box[0])
    with torch.enable_grad(), twice_differentiable(), hooks:
        output = call(target.model, leaves, x)
        torch.autograd.grad(output.square().sum(), list(leaves.values()), create_graph=True, allow_unused=True)
    for box in boxes:
        box.clear()  # of a result, which holds the step that saved it: a circle that no collection of garbage sees
    own = {t.untyped_storage().data_ptr() for t in (*target.model.parameters(), *target.model.buffers())}
    return sum(m.nbytes() for place, m in seen.items() if place not in own) / images / target.mean.element_size()
