"""What a model gives away by its architecture (Inverting Gradients, Sec. 4.2 and 5.1)."""

from dosimeter.studies.sweep import Row, Study

_SMALL = ("mlp-2", "mlp-bayes", "mlp", "mlp-no-bias", "lenet", "lenet-bn", "cnn", "cnn-bayes", "convbig")
_LARGE = ("vgg16-bn", "vit", "vit-released", "vit-ti", "vit-s")
_RESIDUAL = ("resnet20", "resnet20-4", "resnet32", "resnet32-10", "resnet18", "resnet18-gn", "resnet34", "resnet50")


def _reduced(model: str, published: str | None = None) -> Row:
    return Row(model=model, victims=8, steps=600, attack="ig:tv=0.0001", published=published)


STUDIES = (
    Study(
        name="architectures",
        question="How much does an update of each model give away?",
        rows=(
            *(Row(model=name, victims=8) for name in _SMALL),
            *(Row(model=name, victims=4) for name in ("biglinear:width=8", "convnet", "vgg16")),
            *(Row(model=name, victims=1) for name in (*_LARGE, *_RESIDUAL, "resnet152")),
            Row(model="resnet18-imagenet", data="imagenet_samples_224", split="test", victims=1),
        ),
    ),
    Study(
        name="pooling",
        question="Does average pooling give away more than max pooling (Sec. 4.2, at an eighth of the width)?",
        rows=(
            _reduced("convnet:width=8", "11.18 at width 64"),
            _reduced("convnet:width=8,pooling=average", "17.87 at width 64"),
        ),
    ),
    Study(
        name="width",
        question="Do wider networks give away more (Fig. 3, at reduced widths)?",
        rows=tuple(_reduced(f"convnet:width={width},pooling=average") for width in (2, 4, 8, 16)),
    ),
)
