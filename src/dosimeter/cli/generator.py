"""`dosimeter train-generator`: the trained generator that the attack `ggl` searches."""

import time

import torch
import typer

from dosimeter import data, metrics
from dosimeter.attacks import generators
from dosimeter.cli import options
from dosimeter.cli.console import err, hint, out
from dosimeter.lines import say
from dosimeter.progress import bar
from dosimeter.rng import numpy_stream


def run(asked: options.Generator) -> None:
    """Train the decoder and say how well it rebuilds images that it has not seen."""
    training = generators.Training(latent=asked.latent, width=asked.width, epochs=asked.epochs, seed=asked.seed)
    generators.check_place(asked.out, overwrite=asked.overwrite)
    dataset = data.load(asked.data, size=asked.size, channels=asked.channels)
    order = numpy_stream(asked.seed, "generator", asked.split).permutation(dataset.count(asked.split))[: asked.images]
    shown = dataset.images(asked.split, order)
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
    about = f"decoder of a variational autoencoder, {dataset.name} {asked.split}, {len(shown)} images, {training}"
    generators.save_generator(
        trained.network, asked.out, shape=dataset.shape, latent=asked.latent, width=asked.width, about=about
    )
    form, seconds = "x".join(map(str, dataset.shape)), time.perf_counter() - began
    say(out, f"{asked.out}: a generator of {form}, trained in {seconds:.0f} s")
    if len(trained.originals):
        mean = shown.mean(0).expand_as(trained.originals)
        rebuilt, plain = (float(metrics.ssim(made, trained.originals).mean()) for made in (trained.rebuilt, mean))
        say(
            out,
            f"{len(mean)} images that it did not learn from come back from their latents with a mean SSIM of "
            f"{rebuilt:.3f}; the mean of all images has {plain:.3f}.",
        )
    hint(f"dosimeter audit --attack ggl:generator={asked.out}")
