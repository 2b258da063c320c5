"""Which ways to search deep networks are worth their cost: equal steps, on images of the attacker's own.

With noise on updates too, where the densities of the Bayes paper are the rival.
"""

from dosimeter.studies.study import Row, Study

STEPS = 300
_NETWORKS = ("lenet", "cnn", "vit-released", "resnet18")
_WAYS = (
    "ig",
    "ig:coarse=50",
    "ig:coarse=auto",
    "ig:distance=mean-cosine",
    "ig:distance=chord",
    "ig:top=10",
    "ig:by=lbfgs,lr=1,decay=none",
    "ig-cvb",
    "ig:signed=false,lr=0.1,decay=plateau",
)

STUDY = Study(
    name="searches",
    question="Which ways to search are worth their cost, at equal steps on images of the attacker's own?",
    rows=tuple(
        Row(model=model, attack=words, steps=STEPS, victims=1, shadows=8 if model != "resnet18" else 2)
        for model in _NETWORKS
        for words in _WAYS
    )
    + tuple(
        Row(model=model, attack=words, defense="noise:sigma=0.01", steps=STEPS, victims=1, shadows=8)
        for model in ("lenet", "cnn")
        for words in ("ig", "ig:coarse=auto", "bayes:density=gaussian,scale=0.01")
    ),
    columns=("model", "defense", "attack", "steps", "PSNR", "without the update", "SSIM", "seconds"),
)
