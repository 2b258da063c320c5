"""A task whose prior is known exactly: points of a Gaussian instead of images (Bayes paper, Sec. 6, Fig. 4)."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dosimeter.errors import SettingError
from dosimeter.rng import numpy_stream
from dosimeter.types import Shape, Victims


@dataclass(frozen=True, kw_only=True)
class GaussianTask:
    """x ~ N(0, I) in `dimensions` dimensions, y = argmax(W x) with one fixed matrix W of N(0, 1) entries.

    The Bayes paper attacks a 2-layer perceptron on it (`mlp-2`), defended by Laplacian noise of scale 0.1, to compare
    attacks that have the right p(x) and p(g | x) with attacks that do not. A point is an image of 1 x 1 x dimensions
    whose values are any real numbers: a search must not clamp them to [0, 1] (`moves=()`), and PSNR and SSIM, which
    know where white is, mean nothing. The paper reports the distance |x' - x|.

    Deviations: the paper leaves the number of classes and the law of W out. The entries are N(0, 1) in its program,
    which is told the number of classes when it is run; it is 10 here. The paper draws 1,000 points; here are as many as
    are asked for.
    """

    dimensions: int = 20
    classes: int = 10
    seed: int = 0
    """Names the matrix W, and with it the task; points have a seed of their own."""

    mean: ClassVar[float] = 0.0
    """Of every coordinate, under the prior."""
    std: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if self.dimensions < 1 or self.classes < 2:
            raise SettingError(
                f"A Gaussian task needs at least 1 dimension and 2 classes, got {self.dimensions} and {self.classes}."
            )

    @property
    def shape(self) -> Shape:
        return 1, 1, self.dimensions

    @cached_property
    def weights(self) -> Tensor:
        """W, (classes, dimensions) float64."""
        drawn = numpy_stream(self.seed, "gaussian task").standard_normal((self.classes, self.dimensions))
        return torch.from_numpy(drawn)

    def draw(self, n: int, *, batch: int = 1, seed: int = 0, split: str = "train") -> Victims:
        """n batches of B points with labels; a place of a seed and split is the same point whatever n and B are.

        Splits are names for points that have nothing to do with each other: "train", "test", "shadow".
        """
        if n < 1 or batch < 1:
            raise SettingError(f"Victims must be at least 1 batch of at least 1 point, got {n} of {batch}.")
        # Numpy's draws are those of a smaller number and then more; torch's are not.
        points = numpy_stream(seed, "gaussian points", split).standard_normal((n, batch, *self.shape))
        images = torch.from_numpy(points.astype(np.float32))
        places = torch.arange(n * batch).reshape(n, batch)
        ids = tuple(f"{split}:{'+'.join(map(str, row))}" for row in places.tolist())
        return Victims(images, self.label(images), places, ids)

    def label(self, images: Tensor) -> Tensor:
        """y = argmax(W x) of points (..., 1, 1, dimensions) -> (...)."""
        self._check(images)
        return (images.flatten(-3).double() @ self.weights.to(images.device).T).argmax(-1)

    def log_density(self, images: Tensor) -> Tensor:
        """log p(x) = -|x|^2 / 2 - d / 2 log(2 pi), (..., 1, 1, dimensions) -> (...); differentiable."""
        self._check(images)
        return -images.flatten(-3).square().sum(-1) / 2 - self.dimensions / 2 * math.log(2 * math.pi)

    def _check(self, images: Tensor) -> None:
        if images.shape[-3:] != self.shape:
            raise SettingError(f"Points must be (..., 1, 1, {self.dimensions}), got {tuple(images.shape)}.")
