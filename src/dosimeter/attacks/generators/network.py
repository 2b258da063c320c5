"""The network behind both generator attacks: from a vector of noise to an image."""

from itertools import pairwise

from torch import Tensor, nn

from dosimeter.errors import SettingError
from dosimeter.types import Shape

SMALLEST = 4
"""Pixels a side after the first layer; every block doubles them."""
MOST_BLOCKS = 8


class Network(nn.Module):
    """Noise (n, latent) -> images (n, C, H, W) in [0, 1] (GRNN, Ren et al. 2021, and its program).

    A transposed convolution makes 4x4 pixels of the noise, then blocks of nearest upsampling, a 3x3 convolution, batch
    norm and a gated linear unit double them; the last block makes the image's channels, a sigmoid its range. Channels
    halve with every block, down to `width` before the last. The smallest such square that holds the image is made, and
    its middle is cut out.

    Args:
        shape: (C, H, W) of the images.
        latent: numbers of the noise.
        width: channels before the last block; the paper's program has 32.
        trained: whether it is trained on many images and then used: batch norm keeps running statistics, and the last
            block is a plain convolution, which learns far faster than a gated one after batch norm.
    """

    def __init__(self, *, shape: Shape, latent: int, width: int, trained: bool) -> None:
        super().__init__()
        if latent < 1 or width < 1:
            raise SettingError(f"A generator needs a latent and a width of at least 1, got {latent} and {width}.")
        channels, self.height, self.across = shape
        blocks = blocks_for(shape)
        widths = [width * 2**block for block in reversed(range(blocks))]  # before every block
        self.first = nn.ConvTranspose2d(latent, 2 * widths[0], SMALLEST)
        self.gate = nn.GLU(1)
        last = _plain(width, channels) if trained else _block(width, channels, tracked=False)
        pairs = pairwise(widths)
        self.blocks = nn.Sequential(*(_block(before, after, tracked=trained) for before, after in pairs), last)

    def forward(self, noise: Tensor) -> Tensor:
        square = self.blocks(self.gate(self.first(noise[:, :, None, None]))).sigmoid()
        top, left = ((square.shape[-1] - side) // 2 for side in (self.height, self.across))
        image: Tensor = square[..., top : top + self.height, left : left + self.across]
        return image


def blocks_for(shape: Shape) -> int:
    """How often 4x4 pixels must double to hold an image."""
    blocks, side = 1, max(shape[1:])
    while SMALLEST * 2**blocks < side:
        blocks += 1
    if min(shape[1:]) < 2 or blocks > MOST_BLOCKS:
        raise SettingError(
            f"A generator makes images of 2 to {SMALLEST * 2**MOST_BLOCKS} pixels a side, got {shape}; "
            "use an attack on the pixels."
        )
    return blocks


def _block(before: int, after: int, *, tracked: bool) -> nn.Sequential:
    """Twice the side; a gated linear unit halves the channels again."""
    return nn.Sequential(
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.Conv2d(before, 2 * after, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * after, track_running_stats=tracked),
        nn.GLU(1),
    )


def _plain(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(before, after, 3, padding=1))
