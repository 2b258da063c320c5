"""Optuna's study in a folder: every setting that was tried, in a journal that several processes append to.

tune.jsonl          the journal (`optuna.storages.journal`)
tune.lock           held while the journal is appended to, `turn.lock` while settings are taken
owners/NAME.lock    held by a living process; settings of a dead one are tried again
"""

import fcntl
import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from numbers import Real
from pathlib import Path
from typing import Any, Self

from dosimeter import files
from dosimeter.errors import DAMAGED, DataError, SettingError, unknown
from dosimeter.files import locked

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, Trial
    from optuna.trial import TrialState as State
except ImportError:
    raise SettingError("dosimeter tune needs Optuna; install it (pip install 'dosimeter[tune]').") from None

FILE, STUDY = "tune.jsonl", "tune"
__all__ = ["PRUNERS", "SAMPLERS", "Journal", "State", "importances", "pruner", "sampler"]
SAMPLERS = ("tpe", "random", "grid", "qmc", "gp", "cmaes")
PRUNERS = ("none", "median", "halving")


class _Lock:
    """Of the journal; it goes with its process, and clears away the line that a killed one left half-written."""

    def __init__(self, journal: Path) -> None:
        self._journal, self._handle = journal, -1

    def acquire(self) -> bool:
        self._handle = os.open(self._journal.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        with open(self._journal, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if size and file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        os.close(self._handle)


class Journal:
    """The study of one folder, open in this process; use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._held = folder, ExitStack()
        (folder / "owners").mkdir(parents=True, exist_ok=True)
        self.owner = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = folder / FILE
        path.touch()
        try:
            self.study = self._study(path)
            for trial in self.trials():
                _check(trial)
        except (*DAMAGED, optuna.exceptions.OptunaError) as error:
            raise DataError(
                f"{path}: expected the journal of a tuning, but it is damaged ({files.reason(error)}); choose another "
                "--out."
            ) from None

    def _study(self, path: Path) -> optuna.Study:
        lock: Any = _Lock(path)
        backend = JournalFileBackend(str(path), lock_obj=lock)
        with self.turn():
            return optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name=STUDY,
                direction="maximize",
                load_if_exists=True,
            )

    def __enter__(self) -> Self:
        self._held.enter_context(locked(self.folder / "owners" / f"{self.owner}.lock", os.O_CREAT))
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        (self.folder / "owners" / f"{self.owner}.lock").unlink(missing_ok=True)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While no other process takes settings."""
        handle = os.open(self.folder / "turn.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def take(self) -> Trial:
        """The next setting, in one's turn: one that waits, or a new one for the sampler to propose."""
        trial = self.study.ask()
        trial.set_user_attr("owner", self.owner)
        return trial

    def left_behind(self) -> list[FrozenTrial]:
        """What dead processes had taken."""
        mine = [each for each in self.trials(State.RUNNING) if each.user_attrs.get("owner") != self.owner]
        return [each for each in mine if not self._lives(each.user_attrs.get("owner"))]

    def put_back(self, trial: FrozenTrial) -> None:
        """Have it tried by somebody else, once: whoever is killed in the midst of this leaves it to be done again."""
        values = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        about: dict[str, Any] = {key: trial.user_attrs[key] for key in ("stage", "factor") if key in trial.user_attrs}
        there = any(each.user_attrs.get("again") == trial.number for each in self.trials())
        if not there and (values or about):
            self.wait(values, {**about, "again": trial.number})
        self.study.tell(trial.number, state=State.FAIL)

    def wait(self, params: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Have a setting tried by whoever is next."""
        self.study.enqueue_trial(dict(params), user_attrs=dict(about))

    def trials(self, *states: Any) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    def _lives(self, owner: str | None) -> bool:
        path = self.folder / "owners" / f"{owner}.lock"
        try:
            with locked(path):
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False


_OWNER = re.compile(r"[0-9a-f-]+")
_FORMS: dict[str, Any] = {
    "owner": str, "stage": str, "factor": Real, "words": str, "seconds": Real, "tried": list, "again": int, "why": str,
}  # fmt: skip
"""What settings have beside their values."""


def _check(trial: FrozenTrial) -> None:
    """ValueError where a line of the journal is none that a tuning writes."""
    about = trial.user_attrs
    for key, form in _FORMS.items():
        if key in about and not isinstance(about[key], form):
            raise ValueError(f"the {key} of setting {trial.number} is none")
    if not all(isinstance(each, Real) for each in about.get("tried", [])):
        raise ValueError(f"what was found of setting {trial.number} is no number")
    if not _OWNER.fullmatch(about.get("owner", "0")):
        raise ValueError(f"setting {trial.number} was taken by nobody")


def sampler(name: str, seed: int) -> Any:
    """Optuna's sampler of that name; the settings of a grid are all there before."""
    makers: dict[str, Callable[[], Any]] = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        "grid": lambda: optuna.samplers.RandomSampler(seed=seed),
        "qmc": lambda: optuna.samplers.QMCSampler(seed=seed, scramble=True),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed, deterministic_objective=True),
        "cmaes": lambda: optuna.samplers.CmaEsSampler(seed=seed),
    }
    if name not in makers:
        raise SettingError(unknown("sampler", name, SAMPLERS))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
            return makers[name]()
    except ImportError as error:
        needed = getattr(error, "name", None) or "a package that is missing"
        raise SettingError(f"The sampler {name} needs {needed}; install it, or use tpe.") from None


def pruner(name: str, first: int) -> Any:
    """Who leaves at a pause, of which the first is after so many steps."""
    makers: dict[str, Callable[[], Any]] = {
        "none": optuna.pruners.NopPruner,
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=4),
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, first), reduction_factor=2),
    }
    if name not in makers:
        raise SettingError(unknown("pruning", name, PRUNERS))
    return makers[name]()


def importances(study: Any) -> dict[str, float]:
    """The share of the score's spread that each setting accounts for; nothing where too few were tried."""
    with suppress(ValueError, RuntimeError, ZeroDivisionError, UserWarning), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("error", message="The number of trials is too small")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        found: dict[str, float] = optuna.importance.get_param_importances(study, evaluator=evaluator)
        return found
    return {}
