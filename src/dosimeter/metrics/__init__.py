"""How much of a victim is in its reconstruction.

    images     MSE, PSNR, SSIM, SSIM under shifts; clipping and min-max scaling
    labels     how many labels of a batch were recovered
    lpips      the perceptual distance LPIPS with AlexNet or VGG-16
    matching   which reconstruction of a batch belongs to which original
    rates      success rates with intervals, and identification among decoys
    score      all of it for a matched batch, and summaries

Metrics see the truth. They are for scoring after an attack has returned; nothing here is imported by an attack.
Images are (n, C, H, W) in [0, 1], scores (n,); a `Metric` is a score with its name and direction.
"""

from dosimeter.metrics.images import clip, min_max, mse, psnr, ssim, ssim_shifted
from dosimeter.metrics.labels import align_labels, even_guess, label_overlap
from dosimeter.metrics.lpips import Lpips, find_weights, weights_at_hand
from dosimeter.metrics.matching import match_batch, match_batches
from dosimeter.metrics.rates import Rate, identification, percent, wilson
from dosimeter.metrics.score import (
    PSNR_CAP,
    STANDARD,
    Metric,
    Score,
    Scores,
    in_units_of,
    of_lpips,
    score_images,
    summarise,
)

__all__ = [
    "PSNR_CAP",
    "STANDARD",
    "Lpips",
    "Metric",
    "Rate",
    "Score",
    "Scores",
    "align_labels",
    "clip",
    "even_guess",
    "find_weights",
    "identification",
    "in_units_of",
    "label_overlap",
    "match_batch",
    "match_batches",
    "min_max",
    "mse",
    "of_lpips",
    "percent",
    "psnr",
    "score_images",
    "ssim",
    "ssim_shifted",
    "summarise",
    "weights_at_hand",
    "wilson",
]
