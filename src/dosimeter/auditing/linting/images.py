"""Images, and features of them, that are solved for in closed form.

Which attacks might is the panel's to say, from the facts of what becomes of updates; whether one fits, its own check.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from dosimeter.attacks import Attack, presets
from dosimeter.attacks.solve.analytic import Analytic
from dosimeter.attacks.solve.certificate import IMAGE
from dosimeter.attacks.solve.count import count_ranks
from dosimeter.attacks.solve.deep import wide_of
from dosimeter.attacks.solve.embedding import Embedding, find_embedding
from dosimeter.attacks.solve.features import find_layers, inputs_of
from dosimeter.attacks.solve.first_layer import find_first_layer
from dosimeter.attacks.solve.latent import read_noisy
from dosimeter.attacks.solve.patches import UNITS
from dosimeter.attacks.solve.straight import read_straight
from dosimeter.auditing.linting.findings import Leak, Level
from dosimeter.auditing.linting.subject import ALONE, Subject
from dosimeter.auditing.panel.contenders import contenders
from dosimeter.auditing.result import Role
from dosimeter.errors import SettingError
from dosimeter.servers import checks
from dosimeter.types import Secretive

HALF = 0.5
"""The share of an image from which on it is the image that leaks, not a part of it."""

WORDS: dict[Attack, str] = {presets.BY_NAME[word](): word for word in ("analytic", "eliminate", "unlock")}
"""What the command line calls attacks that solve; any other of a panel is called by the panel, auto."""

CONTROL: Role = "control"


class _Solved(NamedTuple):
    """What a closed form gives, before it is said how exactly."""

    rule: str
    where: str
    what: str
    level: Level
    remedy: str
    share: float | None = None
    tensors: frozenset[str] | None = None  # whose gradients it takes; None for all


def solved(subject: Subject) -> tuple[list[Leak], dict[str, str]]:
    """What attacks that solve would find in an update of one image, and {attack: why it does not fit}."""
    found: list[Leak] = []
    refused: dict[str, str] = {}
    for one in contenders(subject.channel, steps=1):
        if one.role == CONTROL or one.rounds > 1 or one.attack.cost(subject.target, 1).steps:
            continue
        word = WORDS.get(one.attack, "auto")
        if reason := subject.refusal(one.attack, 1):
            refused[one.attack.name] = reason
        else:
            found.append(_leak(subject, word, _describe(subject, word, one.about)))
    return found, refused


def _leak(subject: Subject, attack: str, about: _Solved) -> Leak:
    """The leak, a lesser one where batches mix images or something blurs the equations."""
    level, what = about.level, about.what
    options: tuple[tuple[str, str], ...] = ()
    if subject.transforms:
        what += ", as clients changed it before training"
    if subject.batch > 1:
        level, options = level.lowered(), ALONE
        what += f"; batches of {subject.batch} mix images, until one holds a single one"
    if blurs := subject.blurs(about.tensors):
        level = level.lowered()
        what += f"; blurred: {', '.join(blurs)}"
    return Leak(about.rule, level, about.where, what, attack, about.remedy, about.share, options)


def _describe(subject: Subject, word: str, about: str) -> _Solved:
    if word == "eliminate":
        return _drawn(subject)
    if word == "unlock":
        what = "scale and shift of the lock are solved for without its key, then the image layer by layer"
        remedy = "noise on the update (dp-sgd, ppp); a convolution without bias before the lock stops this form alone"
        return _Solved("lock", _secretive(subject), what, Level.ERROR, remedy)
    if word != "analytic":
        return _Solved("closed-form", "", about, Level.ERROR, "noise on the update (dp-sgd, ppp)")
    if (embedding := find_embedding(subject.exact)) is not None:
        return _patches(subject, embedding)
    if (layer := find_first_layer(subject.exact)) is not None:
        sent = f"the ratio of the gradients of {layer.weight} and {layer.bias}"
        what = "the image is " + (sent if layer.bias else f"the singular vector of the gradient of {layer.weight}")
        remedy = "a convolution before it, or a first layer that is not trained; no bias is not enough"
        tensors = frozenset(filter(None, (layer.weight, layer.bias)))
        return _Solved("first-layer", _module(layer.weight), what, Level.ERROR, remedy, 1.0, tensors)
    return _wide(subject) if Analytic().reads_wide(subject.exact) else _straight(subject)


def _wide(subject: Subject) -> _Solved:
    """A convolution with as many channels as places, of a network that is no row of layers."""
    layer = wide_of(subject.exact)[0]
    numbers, pixels = math.prod(layer.window.shape), math.prod(subject.target.shape)
    what = (
        f"what goes in, {numbers:,} numbers, is solved for by the rank of the gradient of {layer.weight}, which has as "
    )
    what += "many channels as places; then layers below it, and the image is searched for behind them"
    level = Level.ERROR if numbers >= pixels else Level.WARNING
    remedy = "noise on the update (dp-sgd, ppp); fewer channels than places in every layer that is sent"
    return _Solved("wide-layer", _module(layer.weight), what, level, remedy)


def _patches(subject: Subject, layer: Embedding) -> _Solved:
    gradient = subject.exact.gradient(subject.image.double(), subject.label)
    came = layer.returned(gradient)  # (T, m)
    eps = torch.finfo(subject.target.mean.dtype).eps
    rank, tokens = int(torch.linalg.matrix_rank(came, rtol=UNITS * eps)), len(came)
    what = f"the gradient of {', '.join(layer.positions)} says what came back to its tokens; with it {rank:,} of "
    what += f"{tokens:,} directions of patches are solved for, {rank / tokens:.0%} of the image"
    level = Level.ERROR if rank >= HALF * tokens else Level.WARNING
    remedy = "fixed positions (a buffer, such as sines), or positions that are not trained or not sent"
    tensors = frozenset((layer.weight, *layer.positions))
    return _Solved("patches", _module(layer.weight), what, level, remedy, rank / tokens, tensors)


def _straight(subject: Subject) -> _Solved:
    ranks = count_ranks(read_straight(subject.exact))
    last, (rank, unknowns) = list(ranks.items())[-1]
    share = rank / unknowns
    if last == IMAGE:
        what = f"layers in a row are solved from the loss down to the image: at most {rank:,} of its {unknowns:,} "
        what += f"numbers ({share:.0%})"
        level = Level.ERROR if share == 1 else Level.WARNING
    else:
        what = f"layers in a row are solved from the loss down to here: at most {rank:,} of the {unknowns:,} numbers "
        what += "that go in"
        level = Level.WARNING
    remedy = "max pooling or a shortcut stops this closed form, not a search; noise on the update (dp-sgd, ppp) does"
    return _Solved("layer-by-layer", "" if last == IMAGE else last, what, level, remedy, share)


def _drawn(subject: Subject) -> _Solved:
    remedy = "noise on the update (dp-sgd, ppp); noise inside the model is no secret from its gradient"
    try:
        noisy = read_noisy(subject.exact)
    except SettingError:  # no row of layers, but with wide convolutions behind the noise
        what = (
            "what went into the wide convolutions behind the draw is solved for; image and draw are searched behind it"
        )
        return _Solved("draws", _secretive(subject), what, Level.WARNING, remedy)
    rank, unknowns = count_ranks(noisy.above).get(IMAGE, (0, 1))
    what = f"at most {rank:,} of the {unknowns:,} numbers that are drawn are solved for" if rank else "some draws are "
    what += ", then the layers below them" if rank else "solved for"
    level = Level.ERROR if rank == unknowns else Level.WARNING
    return _Solved("draws", _secretive(subject), what, level, remedy)


def features(subject: Subject) -> Iterator[Leak]:
    """A fully connected layer whose gradient holds its input, the widest; what of an image that is."""
    attack = presets.features()
    if subject.refusal(attack, 1):
        return
    (layer,) = find_layers(subject.target, 1)
    image = subject.image.clone().requires_grad_()
    inputs = inputs_of(subject.target.model, image, [layer.name])[layer.name]
    (slopes,) = torch.autograd.grad(inputs.square().sum(), image)
    numbers, seen = image.numel(), int((slopes != 0).sum())
    rank = min(inputs.numel(), seen)
    what = f"its gradient holds its input: {inputs.numel():,} numbers, which fix at most {rank:,} of the image's "
    what += f"{numbers:,} ({rank / numbers:.0%})"
    level = Level.WARNING if rank >= HALF * numbers else Level.NOTE
    if level == Level.NOTE and subject.batch > 1:
        return  # a sum of few features
    remedy = "fewer features before it (pooling), or no bias, which leaves their scale open"
    tensors = frozenset((layer.weight, layer.bias))
    yield _leak(subject, "features", _Solved("features", layer.name, what, level, remedy, rank / numbers, tensors))


def tampered(subject: Subject) -> Iterator[Leak]:
    """What a server that is not honest builds in, which a model may also have by itself."""
    model, shape = subject.target.model, subject.target.shape
    for _, where, what in checks.carried_image(model, shape=shape):
        attack = "ig" if subject.refusal(presets.features(), 1) else "features"
        remedy = "no way for the image around the layers before it"
        tensors = frozenset(name for name in subject.target.parameters if name.startswith(f"{where}."))
        yield _leak(subject, attack, _Solved("carried-image", where, what, Level.ERROR, remedy, tensors=tensors))
    for _, where, what in checks.identity_kernels(model):
        remedy = "weights that were drawn or trained, not set"
        yield _leak(subject, "ig", _Solved("identity-kernels", where, what, Level.WARNING, remedy))
    if subject.batch > 1:
        for _, where, what in checks.separate_examples(subject.exact.model, shape=shape, batch=subject.batch):
            remedy = "layers that treat all images of a batch alike"
            fits = not subject.refusal(presets.features(), subject.batch)
            yield Leak("separate-examples", Level.ERROR, where, what, "features" if fits else "ig", remedy)


def _secretive(subject: Subject) -> str:
    return next((path for path, layer in subject.target.model.named_modules() if isinstance(layer, Secretive)), "")


def _module(weight: str) -> str:
    return weight.rpartition(".")[0]
