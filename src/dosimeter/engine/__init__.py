"""How simulated gradients meet observed ones, for all victims and restarts of a search at once.

matching   the way that a model's gradients are compared: the fastest of those below that gives the plain numbers
chain      straight and residual networks by hand, in four passes, as `reading` finds them; its layers are in `ops`,
           `joints`, `matrix`, `thin` (few positions, by `low`), `winograd` (3x3, by `tiles`) and, by kernels in C++
           where these were built (`native`), `direct` (few channels) and `rows`
transformer   networks of tokens and attention by hand: `tokens` (with `views`, `attending`) reads a model into nodes,
           `pruning` leaves out what nothing depends on; `nodes`, `affine`, `projection`, `heads` and `curves` are these
hand       what both have in common
tape       any other network: one pass, from which every candidate's gradients can be told apart
layers     what the tape knows of linear layers, convolutions and norms
contract   products of gradients, tensor by tensor, in the cheapest exact form
program    passes recorded and repeated         attention   differentiated twice by hand
patches    the windows of convolutions
plan       tiles of victims         threads   tiles side by side
"""

from dosimeter.engine import native, threads
from dosimeter.engine.matching import Explanation, Matcher, Products
from dosimeter.engine.plan import DEFAULT_BUDGET, Plan, client_bytes, plan

__all__ = ["DEFAULT_BUDGET", "Explanation", "Matcher", "Plan", "Products", "client_bytes", "native", "plan", "threads"]
