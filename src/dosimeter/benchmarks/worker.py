"""Run by the python of an environment that has breaching, which need not have dosimeter: times breaching's own loop.

    python worker.py '{"package": ..., "victim": ..., "model": "cnn", "settings": {}, "shape": ..., "classes": 10}'

reads what was observed of a victim and the images to start from, and answers with versions and with breaching's loss
there, then every line {"threads": 1, "seconds": 0.5} with {"rate": image-steps a second, "of_core": a second of this
thread's time on a core, "steps": how many}. Its steps are those of its Inverting Gradients with a cosine match and
without total variation; unlike those of the other ways they include Adam's move. Whatever goes wrong ends the process,
with the reason on standard error.
"""

import json
import sys
import types
from importlib.metadata import version
from time import perf_counter, thread_time
from typing import Any

import torch


def build(job: dict[str, Any]) -> torch.nn.Module:
    """The same model as the other ways'. A bare package stands in for ours, whose own start imports all the rest."""
    package = types.ModuleType("dosimeter")
    package.__path__ = [job["package"]]
    sys.modules["dosimeter"] = package
    from dosimeter import models

    scale = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    made = models.build(
        job["model"], shape=job["shape"], classes=job["classes"], seed=0, settings=job["settings"], **scale
    )
    return made.eval()


class Loop:
    """Breaching's attack on one victim, as its minimal_example.py sets it up."""

    def __init__(self, job: dict[str, Any]) -> None:
        import breaching  # type: ignore[import-not-found]
        from omegaconf import OmegaConf  # type: ignore[import-not-found]

        model, loss = build(job), torch.nn.CrossEntropyLoss()
        self.victim = torch.load(job["victim"], weights_only=True)
        self.batch = len(self.victim["labels"])
        self.settings = breaching.get_attack_config("invertinggradients")
        self.settings.regularization.total_variation.scale = 0.0
        setup = {"device": torch.device("cpu"), "dtype": torch.float}
        self.attacker = breaching.attacks.prepare_attack(model, loss, self.settings, setup)
        self.begun: list[tuple[float, float]] = []  # by the clock and by the time on a core
        self.attacker.objective.register_forward_pre_hook(lambda *_: self.begun.append((perf_counter(), thread_time())))
        about = {"modality": "vision", "task": "classification", "shape": job["shape"], "classes": job["classes"]}
        about |= {"normalize": False, "mean": [0.0] * 3, "std": [1.0] * 3, "size": 1}
        self.server = [
            {
                "parameters": [p.detach() for p in model.parameters()],
                "buffers": list(model.buffers()),
                "metadata": OmegaConf.create(about),
            }
        ]

    def losses(self, steps: int) -> list[float]:
        """What it minimises, before each of so many steps of a new attack."""
        about = {"num_data_points": self.batch, "labels": self.victim["labels"], "local_hyperparams": None}
        shared = [{"gradients": self.victim["observed"], "buffers": None, "metadata": about}]
        self.settings.optim.max_iterations = steps
        self.begun.clear()
        _, stats = self.attacker.reconstruct(self.server, shared, {}, initial_data=self.victim["images"])
        found = list(stats["Trial_0_Val"])
        if len(found) < steps:
            raise ArithmeticError(f"its loss is not finite after {len(found)} steps")
        return found

    def seconds(self, steps: int) -> tuple[float, float]:
        """How long so many of its steps take, from the begin of one to the begin of another; its set-up is left out.

        By the clock, and of this thread's time on a core.
        """
        self.losses(steps + 1)
        first, last = self.begun[0], self.begun[steps]
        return last[0] - first[0], last[1] - first[1]


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what breaching prints must not come between the answers
    loop = Loop(json.loads(sys.argv[1]))
    about = {"version": f"{version('breaching')} on torch {torch.__version__}", "loss": loop.losses(1)[0]}
    print(json.dumps(about), file=answers, flush=True)
    pace: dict[int, float] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        torch.set_num_threads(asked["threads"])
        if asked["threads"] not in pace:
            loop.losses(2)  # warm
            pace[asked["threads"]], _ = loop.seconds(1)
        steps = max(1, round(asked["seconds"] / pace[asked["threads"]]))
        clock, core = loop.seconds(steps)
        pace[asked["threads"]] = clock / steps
        work = steps * loop.batch
        said = {"rate": work / clock, "of_core": work / max(core, 1e-9), "steps": steps}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
