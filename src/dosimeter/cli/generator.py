"""`dosimeter train-generator`: the trained generator that the attack `ggl` searches."""

import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape

from dosimeter import data, metrics
from dosimeter.attacks import generators
from dosimeter.cli.console import err, out, refusals
from dosimeter.progress import bar
from dosimeter.rng import numpy_stream


def train_command(
    data_: Annotated[str, typer.Option("--data", help="A data set's name, or an .npz file.")] = "mnist-5k",
    split: Annotated[str, typer.Option(help="The split to learn from; victims should come from the other.")] = "test",
    size: Annotated[int | None, typer.Option(help="Resize images to this height and width.")] = None,
    channels: Annotated[int | None, typer.Option(help="Repeat grey images to 3 channels.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Learn from so many images; all otherwise.")] = None,
    latent: Annotated[int, typer.Option(help="Numbers of the latent.")] = 128,
    width: Annotated[int, typer.Option(help="Channels before the last block.")] = 8,
    epochs: Annotated[int, typer.Option(help="Passes over the images.")] = 10,
    seed: Annotated[int, typer.Option(help="Names every random stream.")] = 0,
    out_: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("generator.safetensors"),
    overwrite: Annotated[bool, typer.Option(help="Replace an older file.")] = False,
) -> None:
    """Train a small generator for the attack ggl, on images that are not attacked: a variational autoencoder."""
    with refusals():
        training = generators.Training(latent=latent, width=width, epochs=epochs, seed=seed)
        generators.check_place(out_, overwrite=overwrite)
        dataset = data.load(data_, size=size, channels=channels)
        order = numpy_stream(seed, "generator", split).permutation(dataset.count(split))[:images]
        shown = dataset.images(split, order)
        began = time.perf_counter()
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)  # these layers are too small for a second thread to help
            with bar(f"generator, {len(shown)} images", None) as advance:
                trained = generators.train_generator(shown, training, advance)
        except KeyboardInterrupt:
            err.print("Interrupted; no generator was written.")
            raise typer.Exit(130) from None
        finally:
            torch.set_num_threads(threads)
        about = f"decoder of a variational autoencoder, {dataset.name} {split}, {len(shown)} images, {training}"
        generators.save_generator(trained.network, out_, shape=dataset.shape, latent=latent, width=width, about=about)
    form, seconds = "x".join(map(str, dataset.shape)), time.perf_counter() - began
    out.print(f"{escape(str(out_))}: a generator of {form}, trained in {seconds:.0f} s", soft_wrap=True)
    if len(trained.originals):
        mean = shown.mean(0).expand_as(trained.originals)
        rebuilt, plain = (float(metrics.ssim(made, trained.originals).mean()) for made in (trained.rebuilt, mean))
        out.print(
            f"{len(mean)} images that it did not learn from come back from their latents with a mean SSIM of "
            f"{rebuilt:.3f}; the mean of all images has {plain:.3f}.",
            soft_wrap=True,
        )
