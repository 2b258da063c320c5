"""Where a page's numbers come from: the command, versions, digests and time; and what to cite."""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from dosimeter.auditing import Outcome, Result, Survey
from dosimeter.progress import duration
from dosimeter.reports import sections
from dosimeter.reports.markup import Html, join, tag
from dosimeter.store import RECORDS, TENSORS

DIGESTS = {
    "fingerprint": "data",
    "weights_fingerprint": "weights",
    "update_fingerprint": "update",
}
"""Settings that are digests."""

WORKS = {
    "ig": (
        "J. Geiping, H. Bauermeister, H. Dröge, M. Moeller. Inverting Gradients: How easy is it to break privacy in "
        "federated learning? NeurIPS 2020."
    ),
    "ppp": (
        "D. Scheliga, P. Mäder, M. Seeland. Combining Variational Modeling with Partial Gradient Perturbation to "
        "Prevent Deep Gradient Leakage. 2022."
    ),
    "cvb": (
        "D. Scheliga, P. Mäder, M. Seeland. Privacy Preserving Federated Learning with Convolutional Variational "
        "Bottlenecks. 2023."
    ),
    "bayes": "M. Balunović, D. I. Dimitrov, R. Staab, M. Vechev. Bayesian Framework for Gradient Leakage. ICLR 2022.",
    "fedkl": "H. Ren, J. Deng, X. Xie. Gradient Leakage Defense with Key-Lock Module for Federated Learning. 2023.",
}
NAMED = {
    "ig": r"\big\b|\big-|ignore|inverting",
    "ppp": r"\bppp|precode",
    "cvb": r"\bcvb",
    "bayes": r"\bbayes|\bdensity",
    "fedkl": r"fedkl|key ?lock|lock solved",
}
"""Names of attacks and defenses, as records have them, that come from each work."""


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that a page is made from."""
    found = {}
    for name in (RECORDS, TENSORS):
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                found[name] = _digest(file.read())
    return found


def again(result: Outcome | Survey, files: Mapping[str, str]) -> Html:
    """The command, and what else decides whether a rerun is the same run."""
    own = {
        f"Fingerprint of the {name}": result.settings[key] for key, name in DIGESTS.items() if result.settings.get(key)
    }
    own |= {"Fingerprint of the run": result.made} if result.made else {}
    own |= {f"SHA-256 of {name}": value for name, value in files.items()}
    versions = {
        f"Version of {k}" if k in ("dosimeter", "torch", "python") else k.capitalize(): v
        for k, v in result.environment.items()
    }
    pairs = {"Time": f"{duration(result.seconds)}, {result.status}", **versions, **own}
    listed = tag("dl", *(tag("div", tag("dt", k), tag("dd", str(v))) for k, v in pairs.items()), class_="settings")
    return join([sections.rerun(result), listed])


def cite(result: Outcome | Survey) -> Html:
    """The program with its version, and the works whose attacks and defenses the result rests on."""
    version = result.environment.get("dosimeter", "")
    entry = "@software{dosimeter,\n  author  = {{The dosimeter authors}},\n  title   = {dosimeter: what a federated "
    entry += f"client's update gives away}},\n  version = {{{version}}}\n}}"
    works = [tag("li", WORKS[key]) for key in used(result)]
    return join(
        [
            tag("pre", tag("code", entry), tabindex=0),
            join([tag("p", "Attacks and defenses of this page come from:"), tag("ul", *works)]) if works else None,
        ]
    )


def used(result: Outcome | Survey) -> list[str]:
    """Which of the five works' parts are in it."""
    told = [str(result.settings.get(key, "")) for key in ("attack_name", "defense")]
    told += [trial.attack for trial in result.panel if trial.result] if isinstance(result, Result) else []
    return [key for key, names in NAMED.items() if any(re.search(names, each.lower()) for each in told)]


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()
