"""How many labels of a batch were recovered, in any order: an update does not tell the order of its images."""

from collections import Counter

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.errors import DataError


def label_overlap(found: Tensor, truth: Tensor) -> Tensor:
    """How many labels two batches share, each counted as often as both have it. (V, B) twice -> (V,) long.

        sum over classes c of  min(times c is in found, times c is in truth)

    B where the counts of all classes are right, whatever the order.
    """
    mine, theirs = (_counts(labels, _classes(found, truth)) for labels in _checked(found, truth))
    return torch.minimum(mine, theirs).sum(1)


def even_guess(truth: Tensor, classes: int) -> Tensor:
    """The share of labels right when a guess spreads the batch over all classes evenly. (V, B) -> (V,).

        sum over classes c of  min(B / classes, times c is in truth) / B

    which is 1 / classes for one image and most of a batch that is much larger than the number of classes.
    """
    (labels, _) = _checked(truth, truth)
    batch = labels.shape[1]
    return _counts(labels, max(classes, _classes(labels))).double().clamp_max(batch / classes).sum(1) / batch


def align_labels(found: Tensor, truth: Tensor) -> Tensor:
    """Each row of found in the order that agrees with truth in the most places. (V, B) twice -> (V, B)."""
    found, truth = _checked(found, truth)
    rows = []
    for mine, theirs in zip(found.tolist(), truth.tolist(), strict=True):
        spare = Counter(mine) - Counter(theirs)  # what truth has no place for
        shared = Counter(mine) & Counter(theirs)
        wrong = spare.elements()
        row = []
        for label in theirs:
            hit = shared[label] > 0
            shared[label] -= hit
            row.append(label if hit else next(wrong))
        rows.append(row)
    return torch.tensor(rows, dtype=found.dtype, device=found.device)


def _checked(found: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    wrong = found.shape != truth.shape or found.ndim != 2 or found.is_floating_point() or truth.is_floating_point()
    if wrong or not found.numel() or min(int(found.min()), int(truth.min())) < 0:
        raise DataError(
            "Expected the labels of the same updates twice, (V, B) whole numbers from 0 on, got "
            f"{found.dtype} {tuple(found.shape)} and {truth.dtype} {tuple(truth.shape)}."
        )
    return found, truth


def _classes(*labels: Tensor) -> int:
    return 1 + max(int(one.max()) for one in labels)


def _counts(labels: Tensor, classes: int) -> Tensor:
    """(V, classes)"""
    return F.one_hot(labels, classes).sum(1)
