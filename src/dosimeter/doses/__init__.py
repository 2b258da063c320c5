"""Leakage without an attack: how much of a private image an update determines, by linear algebra at the truth.

slopes       forward derivatives of what layers see and of what comes back to them
information  J^T J of every tensor of an update, J not written out
channels     from a defense's facts to noise, zeros and clipping of every tensor
priors       what a reader knows of images before: white, the covariance of public images
algebra      elimination, determined directions, bits, posterior
measure      one dose; result: what it is
plan         the smallest noise that is enough
"""

from dosimeter.doses.measure import dose
from dosimeter.doses.plan import plan_of, wanted_of
from dosimeter.doses.priors import Images, White
from dosimeter.doses.result import Doses, ImageDose, SecretDose, TensorDose

__all__ = ["Doses", "ImageDose", "Images", "SecretDose", "TensorDose", "White", "dose", "plan_of", "wanted_of"]
