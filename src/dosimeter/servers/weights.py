"""Servers that send other weights. Names and shapes of the state dict, and the program, stay as agreed."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dosimeter import checks
from dosimeter.errors import ModelError, SettingError
from dosimeter.servers.base import Tamper, blanks, find_classifier, watch
from dosimeter.types import Shape


@dataclass(frozen=True, kw_only=True)
class PermutedRows(Tamper):
    """The classifier's rows under other labels, so that a trained model errs and gradients grow (IG, Sec. 5.4).

    The paper exchanges two rows of weight and bias. Here row c is sent as row c + `shift` for all classes, so that
    whatever the label, the client differentiates for a wrong one. A model that knows nothing yet loses nothing.
    """

    shift: int = 1

    def __post_init__(self) -> None:
        checks.count("Permuting rows", "a shift", self.shift)

    def __call__(self, model: nn.Module, *, shape: Shape, batch: int) -> nn.Module:
        sent = copy.deepcopy(model)
        classifier = sent.get_submodule(find_classifier(model, shape))
        if not self.shift % (rows := len(next(classifier.parameters()))):
            raise SettingError(f"A shift of {self.shift} leaves the classifier's {rows} rows in place; choose another.")
        with torch.no_grad():
            for parameter in classifier.parameters():
                parameter.copy_(parameter.roll(self.shift, 0))
        return sent


@dataclass(frozen=True, kw_only=True)
class IdentityConvolutions(Tamper):
    """The first convolutions pass the image on, so that later layers see pixels (Inverting Gradients, Sec. 5.4).

    An output channel copies one input channel at one place of the kernel; of a convolution with stride every place of
    a cell gets a channel of its own, as far as there are channels, so that no pixel is lost. The first one also undoes
    the normalisation, so that pixels are in [0, 1] and ReLUs let them pass; batch norms with running statistics are
    undone too. Channels beyond those keep their weights.

    Args:
        layers: how many convolutions; the paper takes all. Where strides leave too few places, as in `cnn`, passing
            on by all of them throws most of the image away.
    """

    layers: int = 1

    def __post_init__(self) -> None:
        checks.count("Passing the image on", "layers", self.layers)

    def __call__(self, model: nn.Module, *, shape: Shape, batch: int) -> nn.Module:
        sent = copy.deepcopy(model)
        calls, _ = watch(model, blanks(model, shape))
        done, used = 0, shape[0]
        shift = torch.zeros(())
        with torch.no_grad():
            for name, _, inputs, _ in calls:
                own = sent.get_submodule(name)
                if isinstance(own, nn.Conv2d):
                    if done == self.layers:
                        break
                    black, white = inputs[:, :, inputs.shape[2] // 2, inputs.shape[3] // 2]  # (C,) each
                    scale, offset = (white - black, black) if done == 0 else (torch.ones(()), torch.zeros(()))
                    used, shift = pass_on(own, used, 1 / scale, -offset / scale)
                    done += 1
                elif isinstance(own, nn.BatchNorm2d) and done and own.affine and own.running_var is not None:
                    assert own.running_mean is not None
                    own.weight[:used] = (own.running_var + own.eps).sqrt()[:used]
                    own.bias[:used] = own.running_mean[:used] + shift
                    shift = torch.zeros(())
        if not done:
            raise ModelError("This server changes convolutions, but the model has none; choose another --server.")
        return sent


def pass_on(conv: nn.Conv2d, inputs: int, gain: Tensor, shift: Tensor) -> tuple[int, Tensor]:
    """Let the convolution copy its first `inputs` channels times `gain` plus `shift`.

    Returns how many output channels do, and what is still to be added to them where the convolution has no bias.
    """
    if conv.groups > 1:
        raise ModelError(f"A convolution in {conv.groups} groups cannot pass the image on; lower `layers`.")
    inputs = min(inputs, conv.in_channels)
    taps = [(i, j) for i in _cell(conv, 0) for j in _cell(conv, 1)]
    outputs = min(conv.out_channels, inputs * len(taps))
    conv.weight[:outputs] = 0
    channels = torch.arange(outputs) % inputs
    for out, channel in enumerate(channels.tolist()):
        conv.weight[(out, channel, *taps[out // inputs])] = gain.expand(inputs)[channel]
    added = shift.expand(inputs)[channels.to(shift.device)]
    if conv.bias is None:
        return outputs, added
    conv.bias[:outputs] = added
    return outputs, torch.zeros(())


def _cell(conv: nn.Conv2d, axis: int) -> range:
    """The places of the kernel, along one axis, that together see every pixel once."""
    size, padding = conv.kernel_size[axis], conv.padding
    before = (0 if padding == "valid" else (size - 1) // 2) if isinstance(padding, str) else padding[axis]
    return range(min(before, size - 1), min(before + conv.stride[axis], size))
