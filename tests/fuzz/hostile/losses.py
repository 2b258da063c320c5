"""Losses of outputs (n, 10) and classes (n,). Those in SANE can be audited; all others must be refused in one line."""

import torch
import torch.nn.functional as F
from torch import Tensor


def good(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels)


def in_place(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output.mul_(2), labels)


def smoothed(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels, label_smoothing=0.1)


def gives_a_vector(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels, reduction="none")


def gives_one_in_a_row(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels)[None]


def gives_a_constant(output: Tensor, labels: Tensor) -> Tensor:
    return torch.tensor(1.0)


def gives_a_constant_that_learns(output: Tensor, labels: Tensor) -> Tensor:
    return torch.tensor(1.0, requires_grad=True)


def gives_zero(output: Tensor, labels: Tensor) -> Tensor:
    return 0 * output.sum()


def gives_complex(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels).to(torch.complex64)


def gives_a_number(output: Tensor, labels: Tensor) -> float:
    return float(F.cross_entropy(output, labels))


def gives_none(output: Tensor, labels: Tensor) -> None:
    return None


def gives_a_tuple(output: Tensor, labels: Tensor) -> object:
    return F.cross_entropy(output, labels), output


def gives_an_integer(output: Tensor, labels: Tensor) -> Tensor:
    return (output.argmax(1) == labels).sum()


def gives_nan(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels) * float("nan")


def gives_infinity(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels) * float("inf")


def gives_meta(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels).to("meta")


def detaches(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output.detach(), labels)


def through_numpy(output: Tensor, labels: Tensor) -> Tensor:
    return torch.tensor(output.detach().numpy().mean())


def raises(output: Tensor, labels: Tensor) -> Tensor:
    raise KeyError("no\nloss")


def raises_nothing_said(output: Tensor, labels: Tensor) -> Tensor:
    raise AssertionError


def raises_with_gradients(output: Tensor, labels: Tensor) -> Tensor:
    if output.requires_grad:
        raise ArithmeticError("not with gradients")
    return F.cross_entropy(output, labels)


def wants_other_outputs(output: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(output, labels)


def takes_one(output: Tensor) -> Tensor:
    return output.sum()


def takes_three(output: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    return F.cross_entropy(output, labels, weight)


def takes_none() -> None:
    return None


class Made:
    """A class in place of a loss."""

    def __init__(self, *_: object) -> None:
        pass


NOT_A_FUNCTION = "loss"

SANE = {"good", "in_place", "smoothed", "gives_zero", "wants_other_outputs"}
"""What may be accepted: an update of zeros is told as such, and torch broadcasts classes over outputs."""
