"""Questions of the papers as sweeps of audits, with the published figures beside ours: `dosimeter study`.

study          rows of audits as trials of a store, and their table
architectures  every model, pooling and width (Inverting Gradients)
bayes          right and wrong densities, points in a ball (Bayes)
defenses       what defenses hold against attacks made for them (PPP, CVB, Bayes)
labels         what updates say of their labels (iDLG, LLG)
searches       coarse to fine, weights of tensors, quasi-Newton moves at equal cost
verdicts       whether audits say what is known for certain
"""

from dosimeter.studies.architectures import STUDIES as _ARCHITECTURES
from dosimeter.studies.bayes import BALLS, compare_densities, distances_as_markdown
from dosimeter.studies.defenses import STUDIES as _DEFENSES
from dosimeter.studies.labels import STUDY as _LABELS
from dosimeter.studies.searches import STUDY as _SEARCHES
from dosimeter.studies.study import Outcome, Row, Study, as_markdown, run
from dosimeter.studies.verdicts import STUDY as _VERDICTS

BY_NAME = {study.name: study for study in (*_ARCHITECTURES, BALLS, _LABELS, *_DEFENSES, _SEARCHES, _VERDICTS)}

__all__ = [
    "BY_NAME",
    "Outcome",
    "Row",
    "Study",
    "as_markdown",
    "compare_densities",
    "distances_as_markdown",
    "run",
]
