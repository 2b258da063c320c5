"""What a model gives away by its architecture (Inverting Gradients, Sec. 4.2 and 5.1)."""

from dosimeter.studies.study import Row, Study

_SMALL = ("mlp-2", "mlp-bayes", "mlp", "mlp-no-bias", "lenet", "lenet-bn", "cnn", "cnn-bayes", "convbig")
_LARGE = ("vgg16-bn", "vit", "vit-released", "vit-ti", "vit-s")
_RESIDUAL = ("resnet20", "resnet20-4", "resnet32", "resnet32-10", "resnet18", "resnet18-gn", "resnet34", "resnet50")
_SLOW = ("resnet20", "resnet20-4", "resnet32", "vit", "vit-ti")


def _published(normalised: float, of: str) -> str:
    """A PSNR of the paper, whose program takes it on normalised images: 12.0 dB below one in [0, 1] on CIFAR-10."""
    return f"{normalised + 12:.1f} ({normalised:.2f} on normalised images), {of}"


def _reduced(model: str, published: str | None = None) -> Row:
    return Row(model=model, victims=8, steps=600, attack="ig:tv=0.0001", published=published)


def _ablated(change: str, published: str) -> Row:
    settings = change if change.startswith("tv=") else ",".join(filter(None, ("tv=0.0001", change)))
    return Row(
        model="convnet:width=8,pooling=average", victims=8, steps=600, attack=f"ig:{settings}", published=published
    )


STUDIES = (
    Study(
        name="architectures",
        question="How much does an update of each model give away?",
        rows=(
            *(Row(model=name, victims=8) for name in _SMALL),
            *(Row(model=name, victims=4) for name in ("biglinear:width=8", "convnet", "vgg16")),
            *(Row(model=name, victims=1) for name in (*_LARGE, *_RESIDUAL, "resnet152")),
            Row(model="resnet18-imagenet", data="imagenet_samples_224", split="test", victims=1),
            # Those that 200 signed steps do not suffice for.
            Row(model="lenet", victims=8, steps=2000),
            *(Row(model=name, attack="ig-cvb", victims=1, steps=1000) for name in _SLOW),
            Row(model="vit-released", attack="ig-cvb:tv=0.0001", victims=1, steps=1000),
            Row(model="resnet18-imagenet", data="imagenet_samples_224", split="test", attack="ig-cvb", victims=1),
        ),
        columns=(
            "model",
            "attack",
            "data",
            "steps",
            "PSNR",
            "without the update",
            "SSIM",
            "SSIM without it",
            "images read",
        ),
    ),
    Study(
        name="ablation",
        question="What is each choice of Inverting Gradients worth (Table 1, at an eighth of the width)?",
        rows=(
            _ablated("", _published(19.36, "basic setup")),
            _ablated("signed=false", _published(19.29, "without signed gradients")),
            _ablated("tv=0", _published(18.80, "without total variation")),
            _ablated("by=descent", _published(-2.34, "gradient descent")),
            _ablated("box=false", _published(19.37, "without box")),
            _ablated("by=lbfgs,lr=1,box=false", _published(-2.40, "L-BFGS")),
            _ablated("distance=l2", _published(-0.38, "L2")),
        ),
        columns=("attack", "model", "data", "steps", "PSNR", "without the update", "SSIM", "images read", "published"),
    ),
    Study(
        name="pooling",
        question="Does average pooling give away more than max pooling (Sec. 4.2, at an eighth of the width)?",
        rows=(
            _reduced("convnet:width=8", _published(11.18, "width 64")),
            _reduced("convnet:width=8,pooling=average", _published(17.87, "width 64")),
        ),
    ),
    Study(
        name="width",
        question="Do wider networks give away more (Fig. 3, at reduced widths)?",
        rows=tuple(_reduced(f"convnet:width={width},pooling=average") for width in (2, 4, 8, 16)),
    ),
)
