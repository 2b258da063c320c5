"""How simulated gradients meet observed ones, for all victims and restarts of a search at once.

tape       one pass of all images, from which every image's gradients can be told apart without being written out
patches    the windows of convolutions
contract   products of gradients, tensor by tensor, in the cheapest exact form
matching   the way that a model's gradients are compared, and the plain ways where the tape cannot follow
plan       tiles of victims         threads   tiles side by side
"""

from dosimeter.engine import threads
from dosimeter.engine.matching import Explanation, Matcher, Products
from dosimeter.engine.plan import DEFAULT_BUDGET, Plan, plan

__all__ = ["DEFAULT_BUDGET", "Explanation", "Matcher", "Plan", "Products", "plan", "threads"]
