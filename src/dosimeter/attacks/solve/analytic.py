"""The attack that solves for the image: by the first layer where that is enough, else layer by layer."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor

from dosimeter import checks
from dosimeter.attacks import labels as labels_
from dosimeter.attacks.base import Attack, Solve
from dosimeter.attacks.solve.deep import Deep, DeepSolver
from dosimeter.attacks.solve.eliminate import LatentSolver
from dosimeter.attacks.solve.embedding import find_embedding
from dosimeter.attacks.solve.first_layer import SEARCH, find_first_layer, in_double
from dosimeter.attacks.solve.latent import read_noisy
from dosimeter.attacks.solve.layers import LayerSolver
from dosimeter.attacks.solve.patches import PatchSolver
from dosimeter.attacks.solve.ratio import RatioSolver
from dosimeter.attacks.solve.spans import TokenSolver, find_tokens
from dosimeter.attacks.solve.straight import read_straight
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Summed, Target


@dataclass(frozen=True, kw_only=True)
class Analytic(Attack):
    """One image an update, solved for; no steps, no starts.

    A fully connected first layer is solved on its own (Inverting Gradients, Prop. 1, and its counterpart without bias),
    as is an embedding of patches to which learned positions are added (`patches`) or fixed ones in general place
    (`spans`), and any other straight network layer by layer (Prop. 2 and R-GAP). Networks that are no row of layers are
    read by their wide convolutions (`deep`). `match` is the relative error of the whole simulated update, or that of
    the first layer's weight where it is larger. An image explains the update if `match` is at most `ROUNDING` units of
    the update's precision. What becomes of a victim:

        recovered                   its image explains the update, and the equations leave none of its numbers open
        layer by layer: n of N      its image explains the update, but so do others: n of its N numbers are determined,
        numbers determined          the smoothest image with these is shown
        not determined              no image was found that does, for instance under noise or where all neurons are
                                    dead; the nearest is shown, which may still be good to look at

    `determined` says for every layer which share of the numbers that went into it the equations determine, if these
    hold, from the last layer down to one that leaves open what the layers above depend on, or to the image.
    """

    name: str = "analytic"
    labels: labels_.Labels = labels_.FromLastLayer()
    """Only the check of the result and the scale of a layer without bias need them."""
    levels: int | None = 256
    """How many a pixel has in a file; where patches come out near whole ones, and these fit the update, they are taken
    for these (`levels`). None leaves them as they were solved for."""

    def __post_init__(self) -> None:
        checks.count("The analytic attack", "levels of a pixel", self.levels, least=2)

    def check(self, target: Target, batch: int) -> None:
        """Refuse what cannot be solved, before any work."""
        if batch != 1:
            raise SettingError(
                f"The analytic attack solves for one image, but an update holds {batch}, whose gradients are summed, "
                f"also those of a ViT's positions; use --batch 1 or {SEARCH}."
            )
        exact = in_double(target)
        if find_embedding(exact) is not None:
            if target.step is not None and not (isinstance(target.step, Summed) and target.step.sums):
                raise SettingError(
                    f"The analytic attack solves a sum of gradients, which {target.step!r} does not send; {SEARCH}."
                )
        elif target.step is None and not target.secrets and find_tokens(exact, target.mean.dtype) is not None:
            pass
        elif find_first_layer(exact) is None:
            if target.step is not None:
                raise SettingError(
                    f"The analytic attack solves one gradient layer by layer, but the client sends {target.step!r}; "
                    f"leave the step out or {SEARCH}."
                )
            if not self.reads_wide(exact):
                read_straight(exact)
        super().check(target, batch)

    def prepare(self, target: Target, seen: Observation, labels: Tensor, *, seed: int) -> Solve:
        exact = in_double(target)
        if (embedding := find_embedding(exact)) is not None:
            return PatchSolver(target, embedding, seen, labels, self.levels).solve
        tokens = find_tokens(exact, target.mean.dtype) if target.step is None and not target.secrets else None
        if tokens is not None:
            return TokenSolver(target, tokens, seen, labels, self.levels).solve
        layer = find_first_layer(exact)
        if layer is None and not seen.statistics and self.reads_wide(exact):
            return DeepSolver(Deep(labels=self.labels), target, seen, labels, seed).solve
        solver = LayerSolver(target, seen, labels) if layer is None else RatioSolver(target, layer, seen, labels)
        return solver.solve

    def reads_wide(self, exact: Target) -> bool:
        """Whether a network is no row of layers and has wide convolutions to read it by."""
        return _only_wide(read_straight, exact, self.labels)


@dataclass(frozen=True, kw_only=True)
class Eliminate(Attack):
    """One image an update of a model that draws noise in one place (PRECODE, CVB), solved for.

    The layers above the noise give the latent b that was drawn. Then the noise is no unknown but a function of the
    image, (b - mean) / deviation, and the layers below are solved too. No paper has this attack; on what it stands is
    said in `eliminate` and `latent`. `match`, what becomes of a victim and `determined` are as in `Analytic`, with
    "latent" among the layers. A convolutional encoder is solved by iteration: `determined` counts the equations that
    hold there once its slopes are known, which another input further off might satisfy too. Networks that are no row
    of layers are read by their wide convolutions, where these stand behind the noise (`deep`).
    """

    name: str = "eliminate"
    labels: labels_.Labels = labels_.FromLastLayer()
    """Only the check of the result and the scale of a last layer without bias need them."""

    def check(self, target: Target, batch: int) -> None:
        """Refuse what cannot be solved, before any work."""
        if batch != 1:
            raise SettingError(
                f"The attack 'eliminate' solves for one image, but an update holds {batch}, whose gradients are "
                f"summed; use --batch 1 or {SEARCH}."
            )
        if target.step is not None:
            raise SettingError(
                f"The attack 'eliminate' solves one gradient, but the client sends {target.step!r}; "
                f"leave the step out or {SEARCH}."
            )
        exact = in_double(target)
        if not self.reads_wide(exact):
            read_noisy(exact)
        super().check(target, batch)

    def prepare(self, target: Target, seen: Observation, labels: Tensor, *, seed: int) -> Solve:
        if not seen.statistics and self.reads_wide(in_double(target)):
            return DeepSolver(Deep(labels=self.labels), target, seen, labels, seed).solve
        return LatentSolver(target, seen, labels, seed=seed).solve

    def reads_wide(self, exact: Target) -> bool:
        """Whether the layers stand in no row, and wide convolutions behind the noise tell of it (`deep`)."""
        return bool(exact.secrets) and _only_wide(read_noisy, exact, self.labels)


def _only_wide(read: Callable[[Target], object], exact: Target, labels: labels_.Labels) -> bool:
    """Whether a model cannot be read otherwise, but by its wide convolutions."""
    try:
        read(exact)
    except SettingError:
        with suppress(SettingError):
            Deep(labels=labels).check(exact, 1)
            return True
    return False
