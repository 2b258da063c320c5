"""How fast the engine is, measured beside the usual way in one run: `dosimeter bench engine`.

cases      what is measured, with the floors that the engine should reach
ways       the same step done in several ways: the usual one, vmap, the engine's tiles
breaching  the public package of that name, in an environment of its own (worker.py runs there)
rounds     bursts of all ways in turn, so that a noisy neighbour hits all alike
crew       threads that stay from burst to burst
load       what other processes took meanwhile         judging  floors, and when the machine was too busy to tell
memory     the engine's peak memory
profile    where the time of a step goes
agreement  whether attacks end where the usual way's do
training   how fast clients train: `dosimeter bench training`
sweeping   what a sweep adds to its trials, and what workers gain: `dosimeter bench sweep`
scale      what very many updates would cost on many machines: `dosimeter bench scale`
costs      prices of work on this machine, for plans of sweeps: `dosimeter bench costs`
linting    how long lint takes on every model: `dosimeter bench lint`
measuring  the whole measurement          report   its tables, file and plot
"""

from dosimeter.benchmarks.agreement import compare
from dosimeter.benchmarks.measuring import FULL, QUICK, Effort, run
from dosimeter.benchmarks.profile import profiles
from dosimeter.benchmarks.report import show, write
from dosimeter.benchmarks.training import Pace, paces

__all__ = ["FULL", "QUICK", "Effort", "Pace", "compare", "paces", "profiles", "run", "show", "write"]
