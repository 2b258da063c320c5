"""What defenses hold against attacks made for them (PPP, Tables 1 and 2; CVB, Table IV; FedKL; Bayes, Table 2)."""

from dosimeter.studies.study import Row, Study

_COLUMNS = (
    "model",
    "trained",
    "accuracy",
    "defense",
    "attack",
    "data",
    "PSNR",
    "SSIM",
    "SSIM without it",
    "images read",
    "published",
)

VICTIMS = 32
TRAINED = "ppp:rounds=5"
"""The training, by ten clients, after which the same victims are attacked again."""


def _before_and_after(cases: tuple[tuple[str, str, str, str | None], ...], trained: str = TRAINED) -> tuple[Row, ...]:
    """(model, defense, attack, published) on the untrained model and after some training."""
    return tuple(
        Row(
            model=model,
            defense=defense,
            attack=attack,
            victims=VICTIMS,
            steps=None,
            protocol=protocol,
            published=None if protocol else published,
        )
        for protocol in (None, trained)
        for model, defense, attack, published in cases
    )


_BARE = "no-bias|precode:bias=false"

_PPP = (
    ("mlp", "none", "ig:steps=200", "SSIM 1.00"),
    ("mlp", "precode", "ig:steps=200", None),
    ("mlp", "precode", "ignore:steps=500", "SSIM 1.00"),
    ("mlp", "noise:sigma=0.01", "ig:steps=200", "SSIM 0.63"),
    ("mlp", "ppp:sigma=0.01", "ignore:steps=500", "SSIM 0.17"),
    ("mlp", "precode", "analytic", None),
    ("mlp", _BARE, "analytic", None),
    ("mlp", _BARE, "eliminate", None),
    ("mlp", "no-bias|ppp:bias=false,sigma=0.01", "analytic", None),
)

_JOINT = "joint:steps=3000"
_CVB = (
    ("cnn", "none", "ig:steps=1000", "SSIM 0.87"),
    ("cnn", "cvb", "ig:steps=1000", None),
    ("cnn", "cvb", "ignore:steps=3000", "SSIM 0.21"),
    ("cnn", "cvb", _JOINT, None),
    ("cnn", "cvb", "eliminate", None),
)

_SEARCH = "ig:steps=500,restarts=4,distance=mean-cosine"
_FEDKL = (
    ("lenet", "none", _SEARCH, None),
    *(("lenet", "fedkl:round=later", f"{_SEARCH},secrets={given}", None) for given in ("guessed", "joint", "known")),
    ("lenet", "fedkl:round=later", "unlock", None),
)

_SOTERIA = (
    ("convbig", "none", "ig:steps=500", None),
    ("convbig", "soteria:rate=0.8", "ig:steps=500", None),
    ("convbig", "soteria:rate=0.8", "leave-out:steps=500", None),
)

_WEIGHTS = {False: ("0.03", "0.1", "0.3", "1", "3"), True: ("0.3", "1", "3", "10", "30")}
"""Of the total variation, before and after training, which leaves less of the update to go by."""
_RATES = ("0.1", "0.5")


def _pruned(density: str, published: str | None, protocol: str | None, *, known: bool = False) -> Row:
    """One density, its weight of total variation and its rate found on shadow images."""
    # Of losses that are not densities, so that the same weights fit: r^2 is 0.02 of r^2 / (2 * 0.1^2).
    scales = {"cosine": 1e-5, "l2": 0.02, "l1": 0.3}
    tries = tuple(
        f"bayes:density={density},tv={float(tv) * scales.get(density, 1.0):g},lr={lr}"
        for tv in _WEIGHTS[protocol is not None]
        for lr in _RATES
    )
    order = ("noise:sigma=0.1", "random-prune:rate=0.5")  # a mask on top of the noise shows itself
    return Row(
        model="cnn-bayes",
        data="mnist",
        attack=f"bayes:density={density}",
        tries=tries,
        defense="|".join(order if known else order[::-1]),
        victims=VICTIMS,
        protocol=protocol,
        published=published,
    )


STUDIES = (
    Study(
        name="ppp",
        question="What do PRECODE, PPP and noise hide from attacks that know of them (PPP, Tables 1 and 2)?",
        rows=_before_and_after(_PPP),
        threshold=0.4,  # below which the paper speaks of sufficient privacy
        columns=_COLUMNS,
    ),
    Study(
        name="cvb",
        question="What does CVB hide from attacks that know of it (CVB, Tables III and IV)?",
        rows=_before_and_after(_CVB),
        columns=_COLUMNS,
    ),
    Study(
        name="soteria",
        question="Does Soteria hold when the tensor that it changes is left out (Bayes, Fig. 2)?",
        rows=_before_and_after(_SOTERIA, trained="ppp:rounds=1"),  # of a network that takes minutes for one
        columns=_COLUMNS,
    ),
    Study(
        name="fedkl",
        question="What does FedKL's key hide from searches with a wrong key, for it, with it, and from none?",
        rows=_before_and_after(_FEDKL, trained="fedkl:clients=3,rounds=10"),
        columns=_COLUMNS,
    ),
    Study(
        name="pruned",
        question="Which density reads updates with half of their entries pruned and noise of 0.1 (Bayes, Table 2)?",
        rows=(
            _pruned("l2", "14.44 dB", None),
            _pruned("l1", "13.95 dB", None),
            _pruned("cosine", "16.72 dB", None),
            _pruned("prune-gaussian", None, None),
            _pruned("known-mask", "18.40 dB", None, known=True),
            _pruned("l2", "13.15 dB", "bayes"),
            _pruned("l1", "13.24 dB", "bayes"),
            _pruned("cosine", "14.47 dB", "bayes"),
            _pruned("prune-gaussian", None, "bayes"),
            _pruned("known-mask", "16.42 dB", "bayes", known=True),
        ),
        columns=_COLUMNS,
    ),
)
