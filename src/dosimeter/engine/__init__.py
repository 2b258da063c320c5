"""How simulated gradients meet observed ones, for all victims and restarts of a search at once."""

from dosimeter.engine.matching import Matcher, Products
from dosimeter.engine.plan import DEFAULT_BUDGET, Plan, plan

__all__ = ["DEFAULT_BUDGET", "Matcher", "Plan", "Products", "plan"]
