"""The papers' attacks with their printed settings; every setting can be changed by keyword.

inverting   Inverting Gradients and its kin     dlg   DLG, iDLG, CPL      bayes   densities and priors
exact       solved or counted                   generated   GRNN, GGL     words   what settings are called
"""

from collections.abc import Callable

from dosimeter.attacks.base import Attack
from dosimeter.attacks.presets.bayes import bayes, grad_inversion
from dosimeter.attacks.presets.dlg import cpl, dlg, idlg
from dosimeter.attacks.presets.exact import analytic, deep, eliminate, features, labels_only, recover_key, unlock
from dosimeter.attacks.presets.generated import ggl, grnn
from dosimeter.attacks.presets.inverting import (
    ignoring,
    inverting_gradients,
    inverting_gradients_a,
    inverting_gradients_b,
    inverting_gradients_cvb,
    inverting_gradients_ppp,
    joint,
    leaving_out,
)
from dosimeter.attacks.presets.words import treat

BY_NAME: dict[str, Callable[..., Attack]] = {
    "ig": inverting_gradients,
    "ig-a": inverting_gradients_a,
    "ig-b": inverting_gradients_b,
    "ig-cvb": inverting_gradients_cvb,
    "ig-ppp": inverting_gradients_ppp,
    "ignore": ignoring,
    "joint": joint,
    "leave-out": leaving_out,
    "bayes": bayes,
    "grad-inversion": grad_inversion,
    "dlg": dlg,
    "idlg": idlg,
    "cpl": cpl,
    "analytic": analytic,
    "eliminate": eliminate,
    "features": features,
    "deep": deep,
    "unlock": unlock,
    "recover-key": recover_key,
    "labels": labels_only,
    "grnn": grnn,
    "ggl": ggl,
}
"""The names that the command line knows."""

__all__ = [
    "BY_NAME",
    "analytic",
    "bayes",
    "cpl",
    "deep",
    "dlg",
    "eliminate",
    "features",
    "ggl",
    "grad_inversion",
    "grnn",
    "idlg",
    "ignoring",
    "inverting_gradients",
    "inverting_gradients_a",
    "inverting_gradients_b",
    "inverting_gradients_cvb",
    "inverting_gradients_ppp",
    "joint",
    "labels_only",
    "leaving_out",
    "recover_key",
    "treat",
    "unlock",
]
