"""What is measured: cases with their floors, and series along which the cost of a step should stay flat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dosimeter.errors import SettingError, unknown
from dosimeter.types import Shape

QUICK = 32
"""A quick measurement takes one victim in so many."""
SMALL = {"mlp": {"width": 128}, "resnet18": {"depth": 20}, "vit": {"depth": 1}}
"""What it makes of large models."""
LARGE = "imagenet"
"""The name of all cases at ImageNet's size."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Victims of one model, undefended or with Gaussian noise on their gradients."""

    name: str
    model: str
    victims: int
    batch: int = 1
    sigma: float = 0.0
    settings: Mapping[str, object] = field(default_factory=dict)  # of the model
    shape: Shape = (3, 32, 32)
    classes: int = 10
    floor: float | None = None
    """How many times as fast as the best other way the engine should be on two cores."""
    floor_alone: float | None = None
    """The same on one core."""
    rounds: int | None = None
    """No more rounds than these, for steps of seconds."""
    asked: bool = False
    """Measured only where it is named."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))  # a list where it comes from a file


@dataclass(frozen=True, kw_only=True)
class Series:
    """The engine alone, along one size."""

    name: str
    points: tuple[tuple[int, Case], ...]  # (size, case)
    limit: tuple[int, int, float] | None = None
    """(a, b, most): a step at size b may cost at most so many times that at size a."""


def _large(name: str, **settings: object) -> Case:
    """A model at ImageNet's size."""
    about = {"name": name, "model": name, "settings": settings}
    return Case(**about, victims=2, shape=(3, 224, 224), classes=1000, rounds=3, asked=True)  # type: ignore[arg-type]


CASES = (
    Case(name="mlp", model="mlp", victims=128, floor=100, floor_alone=55),
    Case(name="mlp-noise", model="mlp", victims=128, sigma=1e-2, floor=8),
    Case(name="cnn", model="cnn", victims=128, floor=40, floor_alone=20),
    Case(name="lenet", model="lenet", victims=128, floor=25, floor_alone=13),
    Case(name="resnet18", model="resnet18", victims=8, floor=6, floor_alone=3),
    Case(name="vit", model="vit", victims=16, floor=6, floor_alone=3),
    _large("resnet18-imagenet"),
    _large("resnet50", stem="imagenet"),
    _large("vit-ti", patch=16),
    _large("vit-s", patch=16),
)
SERIES = (
    Series(
        name="victims",
        points=tuple((n, Case(name=f"victims {n}", model="cnn", victims=n)) for n in (8, 32, 128, 512, 1024)),
        limit=(32, 512, 1.3),
    ),
    Series(
        name="batch",
        points=tuple((n, Case(name=f"batch {n}", model="cnn", victims=32, batch=n)) for n in (1, 4, 16, 64)),
    ),
    Series(
        name="width",
        points=tuple(
            (n, Case(name=f"width {n}", model="mlp", victims=16, settings={"width": n})) for n in (256, 512, 1024, 2048)
        ),
    ),
)


def choose(only: Sequence[str], *, quick: bool) -> tuple[tuple[Case, ...], tuple[Series, ...]]:
    """The cases and series of those names, by default all that need not be named; a quick run takes small ones."""
    names = [part.name for part in (*CASES, *SERIES)] + [LARGE]
    for name in only:
        if name not in names:
            raise SettingError(unknown("measurement", name, names))
    cases = tuple(
        case for case in CASES if (case.name in only or (case.asked and LARGE in only) if only else not case.asked)
    )
    series = tuple(part for part in SERIES if not only or part.name in only)
    if not quick:
        return cases, series
    return tuple(map(_small, cases)), tuple(replace(part, points=part.points[:2]) for part in series)


def _small(case: Case) -> Case:
    settings = {**case.settings, **SMALL.get(case.model, {})}
    return replace(case, victims=max(1, case.victims // QUICK), settings=settings, shape=(3, 32, 32), classes=10)
