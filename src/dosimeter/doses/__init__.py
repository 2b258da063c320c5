"""Leakage without an attack: how much of a private image an update determines, by linear algebra at the truth.

slopes       forward derivatives of what layers see and of what comes back to them
cut          the first layer as a cut, behind which there are fewer directions
information  J^T J of every tensor of an update, J not written out
channels     from a defense's facts to noise, zeros and clipping of every tensor
priors       what a reader knows of images before: white, the covariance of public images
algebra      elimination, determined directions, bits, posterior
updates      what one client's update tells of its images; case: what is the same for all
figures      of one image; pictures: the same to look at
measure      one dose; result: what it is
aggregation  a mean over clients: the others' images as unknowns, or their updates as noise (others)
beside       predicted against reached by attacks
bounds       what clipping and noise alone bound, for DP-SGD
free         the same by products alone, for large models
plan         the dose over noise, and the smallest noise or number of clients that is enough; start: of a defense
"""

from dosimeter.doses.aggregation import Aggregation
from dosimeter.doses.beside import beside
from dosimeter.doses.measure import Show, dose
from dosimeter.doses.plan import Level, Wanted, over_noise, plan_of, wanted_of
from dosimeter.doses.priors import Images, White
from dosimeter.doses.result import Doses, ImageDose, SecretDose, TensorDose
from dosimeter.doses.start import strength_enough

__all__ = [
    "Aggregation",
    "Doses",
    "Show",
    "ImageDose",
    "Images",
    "Level",
    "SecretDose",
    "TensorDose",
    "Wanted",
    "White",
    "beside",
    "dose",
    "over_noise",
    "plan_of",
    "strength_enough",
    "wanted_of",
]
