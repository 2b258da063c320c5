"""All hostile calls: every option of every command and every setting of every part under values that make no sense,
and files of one's own that do what they should not. A new option, part or program is called by existing."""

import hashlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from dosimeter import clients, defenses, federated, models, servers
from dosimeter.attacks import presets
from dosimeter.cli import BENCHMARKS, COMMANDS, STORE
from fuzz.bases import BASES, SETTINGS, Base
from fuzz.calling import Call
from fuzz.files import SANE_UPDATES, updates
from fuzz.found import CALLS as FOUND
from fuzz.found import SANE
from fuzz.hostile import defenses as own_defenses
from fuzz.hostile import losses as own_losses
from fuzz.hostile import models as own_models

WHOLE = ("-1", "0", "1000000000", "99999999999999999999", "1e308", "1.5", "nan", "x", "")
REAL = ("-1", "0", "1e-320", "1e308", "-1e308", "1e400", "99999999999999999999", "nan", "inf", "-inf", "x", "")
WORDS = (
    "", ":", "=", "|", "+", ",", "nan", "-1", "99999999999999999999", "1e308+nan", "x:y=z", "x" * 5000, "\u202e",
    "{files}/text.txt", "{files}/empty.py:f", "{files}/broken.py:make", "{files}/raising.py:make",
)  # fmt: skip
PATHS = ("", "{files}/none/such", "{files}/text.txt", "{files}", "/dev/null", "/proc/self/none", "x" * 5000)
_LISTS = ("inf", "1e308", "0", "1+nan", "1+-1", "1+1e400", "+".join(["1"] * 20000))
OWN_WORDS = {
    "at": _LISTS,
    "guess_local_steps": _LISTS,
    "guess_local_lr": _LISTS,
    "indices": _LISTS,
    "noise": _LISTS,
    "fail_above": ("inf", "2", "-0.1", "read=nan", "read=", "read=0.1,read=0.2", "x=0.1", "read=1e400"),
    "plan": ("share=nan", "share=inf", "share=0", "share=2", "share=-1", "by=x", "share=0.05,by=clients,x=1", "share="),
    "others": ("noise:updates=-1", "noise:updates=0", "noise:updates=nan", "noise:updates=99999999999999999999"),
    "prior": ("images:x=1", "white:nan"),
    "set": ("lr=nan..1:log", "lr=1..inf", "lr=1..0", "lr=..", "lr=0..1:log", "lr=", "nosuch=1..2", "lr=1..2:x", "lr"),
    "labels": ("3" * 400, "nan", "inf", "3.5", "-1", "10"),
    "on": ("local:0", "local:-1", "local:nan", "local:99999999999999999999", "local:1000000000", "nowhere"),
    "shape": ("0,8,8", "-1,8,8", "1,8,8,8", "1,1000000,1000000", "1,8,99999999999999999999", "nan,8,8"),
    "device": ("meta", "mps", "cuda:99", "xla", "hpu"),
}
"""Words of options that have a form of their own."""
SIGNED = {"seed"}
LIMITED = {"same_client", "public", "most", "workers", "at_once", "points", "trials", "budget", "shards", "images"}
"""What may be as large as anybody likes, since it is cut to what is there."""
NEVER = {"nan", "inf", "-inf", "1e400", "1e308", "-1e308", "x", ""}
"""What no number may be."""


def all_calls(folder: Path) -> list[Call]:
    """Every call there is, none of them twice."""
    found = [
        *options(),
        *settings(),
        *programs(),
        *captured(),
        *shapes(),
        *FOUND,
        *(Call("found", words, sane=True) for words in SANE),
    ]
    return list(dict.fromkeys(placed(call, folder) for call in found))


def sample(calls: Sequence[Call], many: int, seed: int) -> list[Call]:
    """So many of them, the same for the same seed, of every kind in turn.

    The order is by each call's own words, so that a new call moves no others.
    """

    def drawn(call: Call) -> bytes:
        words = (str(seed), *(word if "/" not in word else word.rpartition("/")[2] for word in call.words))
        return hashlib.sha256("\0".join(words).encode()).digest()

    by_kind: dict[str, list[Call]] = {}
    for call in sorted(calls, key=drawn):
        by_kind.setdefault(call.kind, []).append(call)
    turns = [
        call for at in range(max(map(len, by_kind.values()))) for each in by_kind.values() for call in each[at : at + 1]
    ]
    return turns[:many]


def placed(call: Call, folder: Path) -> Call:
    """The call with the files of that folder."""
    return call._replace(words=tuple(word.replace("{files}", str(folder)) for word in call.words))


def options() -> Iterator[Call]:
    """Every option of every command under every hostile value of its type."""
    for group, commands in (("", COMMANDS), ("bench", BENCHMARKS), ("store", STORE)):
        for name, (asked, _) in commands.items():
            for base in BASES.get(f"{group} {name}".strip(), ()):
                hints = get_type_hints(asked)
                for field in fields(asked):
                    option, hint = field.metadata["option"], hints[field.name]
                    if field.name not in base.without and (_is_option(option) or field.name in base.arguments):
                        yield from _under_values(base, field.name, option, hint)


def _is_option(option: Any) -> bool:
    return type(option).__name__ == "OptionInfo"


def _under_values(base: Base, name: str, option: Any, hint: Any) -> Iterator[Call]:
    kinds = _kinds(hint)
    if bool in kinds:
        return
    written = f"--{name.replace('_', '-')}"
    if given := [each for each in option.param_decls or () if each.startswith("--")]:
        written = given[0].partition("/")[0]
    number = int in kinds or float in kinds or hint is Any
    values = REAL if float in kinds else WHOLE if number else PATHS if Path in kinds else WORDS
    for value in (*values, *OWN_WORDS.get(name, ())):
        sane = _sane(name, value, number=number, path=Path in kinds, base=base, kinds=kinds)
        yield Call("options", (*base.words, f"{written}={value}"), sane)


def _kinds(hint: Any) -> set[Any]:
    """The types that a hint allows, or several of."""
    if get_origin(hint) in (Union, types.UnionType, list, Sequence):
        return set().union(*map(_kinds, get_args(hint)))
    return {hint}


def _sane(name: str, value: str, *, number: bool, path: bool, base: Base, kinds: set[Any]) -> bool:
    """Whether a command may take a value: nothing may be no number, below 0 or far beyond all reason."""
    if name in base.any or (name, value) in base.sane:
        return True
    if not number:
        if (name, value) in (("results", "{files}"), ("indices", "0"), ("sarif", "/dev/null")):
            return True
        return path and name in ("out", "results", "sarif") and value == "{files}/none/such"
    if (name, value) in (("decoys", "0"), ("allow", "0")):
        return True
    if value in NEVER or (value == "1.5" and int in kinds):
        return False
    if value in ("-1", "99999999999999999999"):
        return name in SIGNED
    return name in SIGNED or (value == "1000000000" and name in LIMITED)


def settings() -> Iterator[Call]:
    """Every numeric setting of every part that goes by a name."""
    catalogues: dict[str, Mapping[str, Callable[..., object]]] = {
        "attack": presets.BY_NAME,
        "defense": defenses.BY_NAME,
        "server": servers.BY_NAME,
        "step": clients.BY_NAME,
        "protocol": federated.BY_NAME,
        "model": {name: entry.make for name, entry in models.BY_NAME.items()},
    }
    for kind, makers in catalogues.items():
        for name, maker in makers.items():
            for key, whole in numbers(maker):
                if key in models.GIVEN:
                    continue
                for value in WHOLE if whole else REAL:
                    sane = value in ("0", "1000000000") or (value == "-1" and key == "seed")
                    yield Call("settings", (*SETTINGS[kind], f"--{kind}", f"{name}:{key}={value}"), sane)
                yield Call("settings", (*SETTINGS[kind], f"--{kind}", f"{name}:{key}=1,{key}=2"))
            yield Call("settings", (*SETTINGS[kind], f"--{kind}", f"{name}:nosuch=1"))
            yield Call("settings", (*SETTINGS[kind], f"--{kind}", f"{name}:="))


def numbers(maker: Callable[..., object]) -> Iterator[tuple[str, bool]]:
    """The numeric settings of a maker, and whether each is a whole number."""
    inner: Any = maker
    while isinstance(inner, partial):
        inner = inner.func
    hints: dict[str, Any] = get_type_hints(inner.__init__ if inspect.isclass(inner) else inner)
    for key in inspect.signature(maker).parameters:
        kinds = _kinds(hints.get(key))
        if kinds & {int, float} and bool not in kinds:
            yield key, float not in kinds


def programs() -> Iterator[Call]:
    """Models, losses and defenses of one's own in every command that runs them."""
    data = ("--data", "{files}/data.npz")
    one = ("--victims", "1", "--steps", "2", "--decoys", "3")
    for name in _functions(own_models):
        model, sane = (*data, "--model", f"{{files}}/models.py:{name}"), name in own_models.SANE
        for command in (
            ("audit", *one),
            ("audit", *one, "--dry-run"),
            ("audit", "--victims", "1", "--decoys", "3", "--attack", "analytic"),
            ("dose", "--victims", "1", "--public", "20"),
            ("train", "--protocol", "ppp:rounds=1,clients=2,batch_size=10"),
            ("follow", "--protocol", "ppp:rounds=1,clients=2", "--at", "0", "--victims", "1", "--steps", "2"),
            ("check", "--weights", "{files}/weights.safetensors"),
        ):
            yield Call("models", (*command, *model), sane or name in OPEN.get(command[0], ()))
        yield Call("models", ("check", *model, "--sent", model[-1]), sane)
        yield Call("models", ("lint", "--shape", "1,8,8", *model[2:]), sane or name in OPEN["lint"])
    good = (*data, "--model", "{files}/models.py:good")
    for name in _functions(own_losses):
        for command in (
            ("audit", *one),
            ("train", "--protocol", "ppp:rounds=1,clients=2"),
            ("dose", "--victims", "1", "--public", "20"),
        ):
            yield Call("losses", (*command, *good, "--loss", f"{{files}}/losses.py:{name}"), name in own_losses.SANE)
    for name in _functions(own_defenses):
        for command in (
            ("audit", *one),
            ("audit", *one, "--attack", "auto"),
            ("train", "--protocol", "ppp:rounds=1,clients=2"),
            ("dose", "--victims", "1", "--public", "20"),
            ("lint", "--shape", "1,8,8"),
        ):
            words = (
                *command,
                *(good if command[0] != "lint" else good[2:]),
                "--defense",
                f"{{files}}/defenses.py:{name}",
            )
            yield Call("defenses", words, name in own_defenses.SANE or name in OPEN.get(f"{command[0]} defense", ()))
    for text in (
        "broken.py:make",
        "raising.py:make",
        "leaving.py:make",
        "empty.py:make",
        "none.py:make",
        "text.txt",
        "models.py:",
    ):
        for option, more in (
            ("--model", ()),
            ("--loss", good),
            ("--defense", good),
            ("--metric", good),
            ("--attack", good),
        ):
            yield Call("models", ("audit", *one, *data, *more, option, f"{{files}}/{text}"))


def _functions(module: types.ModuleType) -> list[str]:
    """What a program offers, helpers that take something left out."""
    helpers = {"net", "throw", "Around", "doing", "on_model", "on_batch"}
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return [
        *(name for name in own if name not in helpers and not isinstance(vars(module)[name], Enum)),
        "NOT_A_FUNCTION",
        "nosuch",
    ]


_TRAINED = {
    "detaches_input", "data_of_input", "through_numpy", "through_numpy_detached", "through_bytes", "embeds",
    "raises_in_training", "raises_later",
}  # fmt: skip
OPEN: dict[str, set[str]] = {
    "lint": {"gives_too_few"},
    "check": {"nan_weights"},  # which others took the place of
    "train": _TRAINED,
    "lint defense": {name for name in vars(own_defenses) if name.startswith(("batch_", "labels_"))},
}
"""What single commands may accept besides, by their name: they do not come to what is wrong with it."""


def captured() -> Iterator[Call]:
    """Updates that do not fit, and labels and batches that cannot be."""
    base = (
        "captured",
        "--model",
        "{files}/models.py:good",
        "--weights",
        "{files}/weights.safetensors",
        "--shape",
        "1,8,8",
        "--steps",
        "2",
    )
    import torch

    for name in updates({"x": torch.zeros(1)}):
        for more in ((), ("--attack", "analytic"), ("--labels", "3")):
            yield Call(
                "updates",
                (*base, *more, "--update", f"{{files}}/{name}"),
                name in SANE_UPDATES or name == "zeros.safetensors",
            )
        yield Call(
            "updates",
            (*base, "--after", f"{{files}}/{name}"),
            name in (*SANE_UPDATES, "zeros.safetensors", "whole.safetensors", "float8.safetensors", "float8.pt"),
        )
    good = (*base, "--update", "{files}/update.safetensors")
    for labels in ("", "nan", "inf", "-1", "10", "1e308", "99999999999999999999", "3,", "3,5", "3.5", "x", "3" * 400):
        yield Call("updates", (*good, "--labels", labels))
    for shape in (
        "",
        "1",
        "1,8",
        "1,8,8,8",
        "0,8,8",
        "-1,8,8",
        "1,8,9",
        "3,8,8",
        "1,99999999999999999999,8",
        "1,1000000,1000000",
        "nan,8,8",
        "1e3,8,8",
    ):
        yield Call("updates", (*base[:5], "--shape", shape, "--steps", "2", "--update", "{files}/update.safetensors"))


HUGE = [
    (f"--{option}", value)
    for option, values in {
        "rounds": ("100000", "1000000000"),
        "batch": ("41", "1000000000"),
        "same-client": ("1000000000",),
        "average-orders": ("1000000000",),
        "guess-local-steps": ("1000000000", "+".join(["1"] * 5000)),
        "size": ("16384", "1000000"),
        "channels": ("1000000",),
        "step": ("local:steps=1000000000,lr=0.1", "local:steps=1000000,lr=0.1"),
        "device": ("meta", "mps", "cuda", "cuda:99", "xla", "cpu:7", "hpu", "vulkan", ""),
        "budget": ("1e-12",),
        "decoys": ("1000000000",),
        "indices": ("99999999999999999999", "-1", "0+0"),
        "attack": ("ig:restarts=1000000000", "ig:restarts=100000"),
    }.items()
    for value in values
]


def shapes() -> Iterator[Call]:
    """Batches, rounds, sizes and classes that would take more than there is."""
    good = ("--data", "{files}/data.npz", "--model", "{files}/models.py:good", "--steps", "2", "--victims", "1")
    for dry in ((), ("--dry-run",)):
        for more in HUGE:
            yield Call("sizes", ("audit", *good, "--decoys", "3", *more, *dry), _may(more))
        for data in ("many-classes", "negative"):
            yield Call(
                "sizes",
                (
                    "audit",
                    "--model",
                    "mlp:width=8",
                    "--steps",
                    "2",
                    "--victims",
                    "1",
                    "--data",
                    f"{{files}}/{data}.npz",
                    *dry,
                ),
            )
        for data in ("one-class", "flat", "dots"):
            for model in ("mlp:width=8", "cnn"):
                yield Call(
                    "sizes",
                    (
                        "audit",
                        "--model",
                        model,
                        "--steps",
                        "2",
                        "--victims",
                        "1",
                        "--data",
                        f"{{files}}/{data}.npz",
                        *dry,
                    ),
                    sane=True,
                )
    for command in ("train", "dose", "follow", "compare", "calibrate", "sweep", "tune", "check", "lint"):
        for size in ("16384", "1000000", "0"):
            words = (
                *BASES[command][0].words,
                *(("--shape", f"1,{size},{size}") if command == "lint" else ("--size", size)),
            )
            yield Call("sizes", (*words, "--model=cnn"))


def _may(more: tuple[str, ...]) -> bool:
    """What is large and yet can be done, or told beforehand."""
    return more == ("--same-client", "1000000000")
