"""What a client can check of a model it was sent, by itself, before it trains on private data.

Each check looks for what one kind of server leaves behind and needs no more than it says: the model sent, the agreed
program, or what was sent in earlier rounds. Silence is no proof of honesty: a server may do what nobody looked for.
"""

import copy
from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dosimeter import theirs as programs
from dosimeter.errors import ModelError
from dosimeter.rng import stream
from dosimeter.servers.base import find_classifier, watch
from dosimeter.types import Shape

State = Mapping[str, Tensor]
"""A model's `state_dict`."""

PROBES, PIXELS = 16, 64
"""Images of noise, and pixels of them, that are looked for in what layers see."""


FEATURES = 4096
"""Numbers of a layer's input that are compared at once."""


class Finding(NamedTuple):
    """What a check noticed, and where."""

    check: str
    where: str  # a layer or tensor; "" for the whole model
    what: str


def check(
    sent: nn.Module,
    *,
    shape: Shape,
    batch: int = 4,
    agreed: nn.Module | None = None,
    history: Sequence[State] = (),
) -> list[Finding]:
    """All checks that the client's knowledge allows; an empty list when none of them noticed anything.

    Args:
        sent: the model as the server sent it; it is copied.
        shape: (C, H, W) of the images it takes, in [0, 1].
        batch: images of the client's step.
        agreed: the client's own build of the agreed architecture; its weights do not matter.
        history: the state dicts sent in earlier rounds, the last one last. One is enough to find permuted rows, three
            to know how far weights usually move in a round.
    """
    model = _private(sent)
    own = None if agreed is None else _private(agreed)
    found = [] if own is None else architecture(model, own, shape=shape, batch=batch)
    found += identity_kernels(model)
    found += carried_image(model, shape=shape, agreed=own)
    found += separate_examples(model, shape=shape, batch=batch)
    if history:
        found += permuted_rows(model, history[-1], shape=shape)
        found += jump(model.state_dict(), history)
    return found


def architecture(sent: nn.Module, agreed: nn.Module, *, shape: Shape, batch: int = 4) -> list[Finding]:
    """Names and shapes as agreed, and a program that steps as the agreed one does with the same weights."""
    theirs, ours = sent.state_dict(), agreed.state_dict()
    sizes = [
        *(Finding("architecture", name, "is in the model sent but was not agreed") for name in theirs.keys() - ours),
        *(Finding("architecture", name, "was agreed but is not in the model sent") for name in ours.keys() - theirs),
        *(
            Finding("architecture", name, f"has shape {tuple(theirs[name].shape)}, agreed was {tuple(t.shape)}")
            for name, t in ours.items()
            if name in theirs and theirs[name].shape != t.shape
        ),
    ]
    if sizes:
        return sorted(sizes)
    agreed = copy.deepcopy(agreed)
    agreed.load_state_dict(theirs)
    images = _noise(batch, shape, sent)
    if _differing(_step(sent, images), _step(agreed, images)):
        return [Finding("architecture", "", "computes something else than the agreed program with the same weights")]
    return []


def identity_kernels(sent: nn.Module) -> list[Finding]:
    """Filters that are one number and nothing else.

    Under a start that has no direction of its own, the share of a filter's n entries' squares that is in a given one
    follows Beta(1/2, (n - 1)/2). A filter is found when its share is above 0.9 and less likely than one in a million
    in the whole layer. Training gives some filters a favourite entry: up to 0.53 in AlexNet trained on ImageNet.
    """
    found = []
    for name, layer in sent.named_modules():
        if not isinstance(layer, nn.Conv2d) or layer.weight[0].numel() < 2:
            continue
        squares = layer.weight.detach().double().flatten(1).square()  # (filters, n)
        share = squares.amax(1) / squares.sum(1).clamp_min(1e-300)
        if not bool((share > 0.9).any()):
            continue
        from scipy.special import betainc  # here, since nearly no model needs it and all would wait for it

        chance = squares.numel() * betainc((squares.shape[1] - 1) / 2, 0.5, (1 - share).clamp(0, 1).cpu().numpy())
        hits = int(((chance < 1e-6) & (share > 0.9).cpu().numpy()).sum())
        if hits:
            found.append(
                Finding("identity kernels", name, f"{hits} of {len(share)} filters copy one entry of their input")
            )
    return found


def carried_image(sent: nn.Module, *, shape: Shape, agreed: nn.Module | None = None) -> list[Finding]:
    """Layers after the first whose input holds the image, pixel by pixel; those of the agreed model are excused."""
    found = _carriers(sent, shape)
    excused = _carriers(agreed, shape) if found and agreed is not None else {}
    return [
        Finding("carried image", name, f"sees {share:.0%} of the image's pixels as they are")
        for name, share in found.items()
        if name not in excused
    ]


def separate_examples(sent: nn.Module, *, shape: Shape, batch: int = 4) -> list[Finding]:
    """A gradient that depends on the order of the batch, of which it should be a sum."""
    images = _noise(batch, shape, sent)
    there, back = _step(sent, images), _step(sent, images, turned=True)
    moved = _differing(there, back)
    if not moved:
        return []
    what = f"and {len(moved) - 1} more of {len(there)} tensors differ when the same images come in another order"
    return [Finding("separate examples", moved[0] or "output", what)]


def permuted_rows(sent: nn.Module, before: State, *, shape: Shape) -> list[Finding]:
    """Rows of the classifier that look like another class's of the round before, by the best assignment."""
    from scipy.optimize import linear_sum_assignment  # here, since every start of a program would wait for it

    try:
        name = find_classifier(sent, shape)
    except ModelError:
        return []
    state = sent.state_dict()
    weight = f"{name}.weight".removeprefix(".")
    if weight not in before or before[weight].shape != state[weight].shape:
        return []
    now, then = (nn.functional.normalize(_centred(s[weight]), dim=1) for s in (state, before))
    alike = (now @ then.T).cpu()  # (classes, classes)
    _, best = linear_sum_assignment(-alike.numpy())
    moved = [(row, int(own)) for row, own in enumerate(best) if alike[row, own] - alike[row, row] > 0.2]
    if not moved:
        return []
    few = ", ".join(f"{row} was {own}" for row, own in moved[:4]) + (" ..." if len(moved) > 4 else "")
    return [Finding("permuted rows", weight, f"{len(moved)} of {len(alike)} rows are other classes': {few}")]


def jump(sent: State, history: Sequence[State]) -> list[Finding]:
    """Weights that moved more than five times further than ever before, and by more than a tenth of their norm."""
    if len(history) < 3:
        return []
    found = []
    for name, now in sent.items():
        rounds = [state.get(name) for state in history]
        if now.ndim < 2 or not now.is_floating_point() or any(r is None or r.shape != now.shape for r in rounds):
            continue
        past = [r.to(now) for r in rounds if r is not None]
        *usual, last = (_moved(a, b) for a, b in zip(past, [*past[1:], now], strict=True))
        if last > 0.1 and last > 5 * max(usual):
            found.append(
                Finding("jump", name, f"moved by {last:.0%} of its norm in a round, at most {max(usual):.1%} before")
            )
    return found


def _private(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode and float64, where rounding is no difference."""
    return copy.deepcopy(model).double().eval()


def _noise(count: int, shape: Shape, model: nn.Module) -> Tensor:
    return torch.rand(count, *shape, generator=stream(0, "checks")).to(next(model.parameters()))


def _step(model: nn.Module, images: Tensor, *, turned: bool = False) -> dict[str, Tensor]:
    """The output, under "", and the gradients of a loss that weighs every image's output in its own way.

    With `turned` the images come in reverse and the output is turned back.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.enable_grad(), programs.running("The model's step on images of noise cannot be taken", ModelError):
        output = model(images.flip(0)).flip(0) if turned else model(images.clone())
        weights = torch.randn(output.shape, generator=stream(0, "loss")).to(output)
        slopes = torch.autograd.grad((weights * output).sum(), list(parameters.values()), allow_unused=True)
    given = zip(parameters, slopes, strict=True)
    made = {"": output.detach()} | {n: torch.zeros_like(parameters[n]) if g is None else g for n, g in given}
    if strange := [name or "output" for name, tensor in made.items() if not tensor.float().isfinite().all()]:
        raise ModelError(f"The model's step on images of noise is not finite in {strange[0]!r}; do not train on it.")
    return made


def _differing(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    """Names of tensors that differ by more than rounding; some gradients are nothing but rounding."""
    floor = 1e-9 * max(float(g.norm()) for g in one.values())
    return [
        name
        for name, g in one.items()
        if float((g - other[name]).norm()) > max(floor, 1e-6 * float(g.norm() + other[name].norm()))
    ]


def _carriers(model: nn.Module, shape: Shape) -> dict[str, float]:
    """{layer: share of pixels} of the layers after the first that see a tenth of the pixels or more."""
    images = _noise(PROBES, shape, model)
    chosen = torch.randperm(prod(shape), generator=stream(0, "pixels"))[:PIXELS].to(images.device)
    pixels = nn.functional.normalize(_centred(images.flatten(1)[:, chosen]), dim=0).float()  # (PROBES, PIXELS)
    found = {}
    for name, _, inputs, _ in watch(model, images)[0][1:]:
        if len(inputs) != PROBES:
            continue
        # A few at a time stay in the cache.
        most = torch.stack([_most_alike(pixels, some) for some in inputs.flatten(1).split(FEATURES, dim=1)])
        share = float((most.amax(0) > 0.99).double().mean())
        if share >= 0.1:
            found[name] = share
    return found


def _most_alike(pixels: Tensor, features: Tensor) -> Tensor:
    """(PIXELS,) the largest correlation of each pixel with any feature (PROBES, f), whatever its sign."""
    seen = features.to(pixels)
    seen = seen - seen.mean(0)
    size = seen.square().sum(0).sqrt_().clamp_min_(1e-12)  # sooner than a norm along the first axis
    alike: Tensor = (pixels.T @ seen).abs_().div_(size)
    return alike.amax(1)


def _centred(rows: Tensor) -> Tensor:
    return rows.double() - rows.double().mean(0)


def _moved(before: Tensor, after: Tensor) -> float:
    return float((after - before).norm() / before.norm().clamp_min(1e-12))
