"""A model that draws noise in one place, cut there into three.

    image -> layers in a row -> encoder -> latent = mean + deviation * noise -> layers in a row -> loss

Above the latent nothing is random, so it is solved layer by layer like any image. Once the latent b and its slope
s = dL/db are known, the noise is no unknown any more: it is (b - mean) / deviation, a function of what went into the
encoder. What lies below is then an ordinary network with a loss of its own,

    <s, mean + deviation * noise> + penalty                          with the noise held fixed,

whose gradient is the observed one. PRECODE (PPP, Eq. 2) and CVB (Sec. IV) have this form in any place of a straight
network. They are found by running the model, not by their names.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from dosimeter.attacks.solve.first_layer import SEARCH, probes_of
from dosimeter.attacks.solve.ops import Block, Learned
from dosimeter.attacks.solve.straight import cut, read_ops
from dosimeter.errors import SettingError
from dosimeter.networks.remember import remembered
from dosimeter.networks.trace import Call, Section, Trace, replay
from dosimeter.types import Gradient, Loss, Secretive, Shape, Target

LEARNED = {"linear", "conv2d"}
PRODUCT, SUM = {"mul", "rmul"}, {"add", "radd"}


class Latent(NamedTuple):
    """What is known of the draw of one image."""

    value: Tensor  # b, (1, ...) as the model has it
    slopes: Tensor  # dL/db without the penalty


class Noisy(NamedTuple):
    """A model with noise in one place, in float64."""

    noise: str  # the buffer that holds it
    shape: tuple[int, ...]  # of the latent, without the batch
    above: tuple[Block, ...]  # from the latent to the loss
    below: tuple[Block, ...]  # from the image to the encoder's output, of which the last is the encoder
    tail: Target  # the model above, with its loss
    encoder: "Encoder"

    def noise_of(self, image: Tensor, latent: Latent) -> Tensor:
        """(1, ...): the draw that makes the latent of an image (C, H, W)."""
        with torch.no_grad():
            z = image[None]
            for block in self.below:
                z = block(z)
            return self.encoder.noise(z, latent)

    def observed(self, gradient: Gradient) -> dict[str, Tensor]:
        """The gradients of the encoder's layers side by side, under the names of the layer that stands for them."""
        learned = self.below[-1].learned
        found = {learned.weight: torch.cat([gradient[name] for name in self.encoder.weights])}
        if learned.bias is not None:
            found[learned.bias] = torch.cat([gradient[name] for name in self.encoder.biases])
        return found


class Encoder:
    """From the outputs z of the layers before a draw, side by side (1, O, ...), to what is drawn."""

    def __init__(self, trace: Trace, draw: "Draw", layers: Sequence[Call], penalty: Tensor | None) -> None:
        names = {id(p): name for name, p in trace.model.named_parameters()}
        self.weights = [names[id(_argument(call, 1, "weight"))] for call in layers]
        self.biases = [names.get(id(_argument(call, 2, "bias")), "") for call in layers]
        self._outputs: list[Tensor] = [call.out for call in layers]
        self._wanted = [draw.mean, draw.deviation, *([] if penalty is None else [penalty])]
        self._calls = trace.between(self._outputs, self._wanted)

    def run(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(1, ...) mean and deviation, and the penalty."""
        pieces = torch.split(z, [out.shape[1] for out in self._outputs], 1)
        given = {id(out): piece.reshape(out.shape) for out, piece in zip(self._outputs, pieces, strict=True)}
        mean, deviation, *penalty = replay(self._calls, given, self._wanted)
        return mean, deviation, penalty[0].mean() if penalty else z.new_zeros(())

    def noise(self, z: Tensor, latent: Latent) -> Tensor:
        """The draw (1, ...) that makes the latent of z."""
        mean, deviation, _ = self.run(z)
        return (latent.value - mean) / deviation

    def loss(self, z: Tensor, latent: Latent, noise: Tensor) -> Tensor:
        """What the whole loss is below the latent, but for a constant."""
        mean, deviation, penalty = self.run(z)
        return (latent.slopes * (mean + deviation * noise)).sum() + penalty

    def slopes(self, z: Tensor, latent: Latent) -> Tensor:
        """dL/dz (1, O, ...), differentiable in z, on which the noise depends too."""
        noise = self.noise(z, latent)
        found: Tensor = grad(self.loss)(z, latent, noise)
        return found

    def loss_of(self, latent: Latent) -> Loss:
        """The loss below, in the form of a model's."""
        return lambda z, _labels: self.loss(z, latent, self.noise(z, latent).detach())


class Draw(NamedTuple):
    """mean + deviation * noise, as tensors of a trace."""

    mean: Tensor
    deviation: Tensor
    latent: Tensor


@remembered
def read_noisy(target: Target) -> Noisy:
    """The parts of a model with noise in one place, in float64, or a refusal that says what else it does."""
    if len(target.secrets) != 1:
        raise _refusal(
            "it draws none; use --attack analytic" if not target.secrets else f"it draws {len(target.secrets)} times"
        )
    (name,) = target.secrets
    several, single = (Trace(target.model, probes) for probes in (probes_of(target), probes_of(target)[:1]))
    first, draw = find_draw(several, name), find_draw(single, name)
    layer = target.model.get_submodule(name.rpartition(".")[0])
    penalty = layer.penalty if target.penalised and isinstance(layer, Secretive) else None
    layers = _encoding(single, draw)
    outputs: list[Tensor] = [call.out for call in layers]
    if penalty is not None and id(penalty) in single.after([single.images], without=outputs):
        raise _refusal("its penalty depends on more than what is drawn")
    below = _below(target, several, name)
    shape = tuple(draw.latent.shape[1:])
    tail = replace(target, model=Section(several, first.latent, several.output), shape=_three(shape))
    above = cut(read_ops(tail, first.latent), tail.shape)
    if above[-1].learned.places.numel() != 1:
        raise _refusal("it does not end in a fully connected layer")
    encoder = Encoder(single, draw, layers, penalty)
    if len(shape) == 3 and not _place_by_place(encoder, torch.cat(outputs, 1), draw.latent):
        raise _refusal("its mean and deviation mix places of the encoder's output")
    return Noisy(name, shape, above, below, tail, encoder)


def find_draw(trace: Trace, name: str) -> Draw:
    """Where the noise is used: once, times a deviation, plus a mean."""
    product, deviation = _use(trace, trace.model.get_buffer(name), PRODUCT)
    latent, mean = _use(trace, product, SUM)
    if id(trace.output) in trace.after([trace.images], without=[latent]):
        raise _refusal("its output depends on the image by ways around the noise")
    return Draw(mean, deviation, latent)


def _use(trace: Trace, tensor: Tensor, names: set[str]) -> tuple[Tensor, Tensor]:
    """What the only call that takes a tensor gives, and what else it takes."""
    users = [call for call in trace.calls if any(t is tensor for t in call.inputs)]
    others = [t for call in users for t in call.inputs if t is not tensor]
    if len(users) != 1 or users[0].name not in names or len(others) != 1:
        raise _refusal("its noise enters otherwise than as mean + deviation * noise")
    return users[0].outputs[0], others[0]


def _encoding(trace: Trace, draw: Draw) -> list[Call]:
    """The learned layers on whose outputs mean and deviation depend directly, in the order of their calls."""
    private = trace.after([trace.images])
    waiting, found = [draw.mean, draw.deviation], set()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in private:
            continue
        maker = trace.maker.get(id(tensor))
        if maker is None:
            raise _refusal("it draws around the image itself")
        if maker.name in LEARNED:
            found.add(id(maker.out))
        else:
            waiting += maker.inputs
    layers = [call for call in trace.calls if any(id(out) in found for out in call.outputs)]
    if len({(call.name, id(call.inputs[0])) for call in layers}) != 1:
        raise _refusal("its mean and deviation come from layers that do not stand side by side")
    return layers


def _below(target: Target, trace: Trace, name: str) -> tuple[Block, ...]:
    """From the image to the encoder's output, its layers side by side as one."""
    layers = _encoding(trace, find_draw(trace, name))
    inputs = layers[0].inputs[0]
    ops = read_ops(replace(target, model=Section(trace, trace.images, inputs)), trace.images)
    shape = _three(tuple(inputs.shape[1:]))
    each: list[Learned] = []
    for call in layers:
        one = replace(target, model=Section(trace, inputs, call.out), shape=shape)
        (learned,) = read_ops(one, inputs)
        assert isinstance(learned, Learned)
        each.append(learned)
    return cut([*ops, _side_by_side(each)], target.shape)


def _side_by_side(layers: Sequence[Learned]) -> Learned:
    first = layers[0]
    if len(layers) == 1:
        return first
    biased = {layer.bias is not None for layer in layers}
    if len(biased) != 1 or any(not torch.equal(layer.places, first.places) for layer in layers):
        raise _refusal("its mean and deviation come from layers of different form")
    path = first.weight.removesuffix(".weight").rpartition(".")[0]
    return Learned(
        weight=f"{path}.weight",
        bias=f"{path}.bias" if first.bias else None,
        kernel=torch.cat([layer.kernel for layer in layers]),
        places=first.places,
        run=lambda x: torch.cat([layer(x) for layer in layers], 1),
    )


def _place_by_place(encoder: Encoder, outputs: Tensor, latent: Tensor) -> bool:
    """Whether a change of the outputs (1, O, H, W) in one place changes slopes in that place alone."""
    around = Latent(latent + 1, torch.ones_like(latent))
    moved = outputs.clone()
    moved[..., 0, 0] += 0.1
    change = encoder.slopes(moved, around) - encoder.slopes(outputs, around)
    return not change[..., 0, 1:].any() and not change[..., 1:, :].any()


def _three(shape: tuple[int, ...]) -> Shape:
    if len(shape) == 1:
        return shape[0], 1, 1
    if len(shape) != 3:
        raise _refusal(f"what it draws is of shape {shape}")
    return shape[0], shape[1], shape[2]


def _argument(call: Call, place: int, key: str) -> Tensor | None:
    return call.args[place] if len(call.args) > place else call.kwargs.get(key)


def _refusal(why: str) -> SettingError:
    return SettingError(
        "The attack 'eliminate' solves models that draw noise once, between layers in a row, but of this model "
        f"{why}; {SEARCH}."
    )
