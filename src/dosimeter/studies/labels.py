"""What updates say of their labels, from the last layer alone (iDLG; LLG), without a search for images."""

from dosimeter.studies.study import Row, Study

_SIZES = ((64, 1), (64, 16), (16, 100))
"""Updates of so many images; 100 is more than there are classes."""


def _row(
    model: str,
    victims: int,
    batch: int,
    *,
    rule: str = "",
    step: str = "gradient",
    defense: str = "none",
    trained: int = 0,
) -> Row:
    return Row(
        model=model,
        attack=f"labels:rule={rule}" if rule else "labels",
        victims=victims,
        batch=batch,
        steps=None,
        step=step,
        defense=defense,
        protocol=f"bayes:rounds=1,steps={trained},batch_size=64" if trained else None,
    )


STUDY = Study(
    name="labels",
    question="How many labels of a batch does an update give away, and in how many updates all of them?",
    columns=(
        "model",
        "attack",
        "defense",
        "trained",
        "updates",
        "labels right",
        "even guess",
        "all labels right",
    ),
    rows=(
        *(_row(model, *size) for model in ("cnn", "lenet", "mlp", "mlp-no-bias", "cnn:bias=false") for size in _SIZES),
        *(_row(model, *size) for model in ("vit-released", "vit") for size in ((16, 1), (16, 16), (4, 100))),
        _row("vit", 16, 1, rule="rows"),
        *(_row("cnn", *size, rule="llg") for size in _SIZES[1:]),
        *(_row("cnn", 64, 16, defense=f"noise:sigma={sigma}") for sigma in ("0.001", "0.01", "0.1")),
        *(_row("lenet", 64, 16, defense=f"noise:sigma={sigma}") for sigma in ("0.01", "0.1")),
        *(
            _row("cnn", 64, batch, defense=defense, trained=steps)
            for defense in ("precode:k=32", "cvb")
            for steps in (0, 200)
            for batch in (1, 16)
        ),
        *(
            _row("cnn", 32, batch, step=f"local:steps={local},lr={lr}", trained=trained)
            for trained in (0, 200)
            for local, lr in ((5, 0.01), (5, 0.1), (10, 0.01), (10, 0.1))
            for batch in (4, 8, 16)
            if not trained or (local, lr) != (10, 0.1)  # at which clients diverge
        ),
        _row("cnn", 32, 16, step="local:epochs=2,batch_size=4,lr=0.01,optimiser=momentum"),
        *(_row("cnn", *size, trained=steps) for steps in (50, 500) for size in ((64, 1), (64, 8), *_SIZES[1:])),
    ),
)
