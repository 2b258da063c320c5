"""Calls that once ended badly: in a traceback, over the budget, or accepted though they make no sense."""

from fuzz.bases import DATA, DRY, MODEL, ROUNDS, SHORT, TASK
from fuzz.calling import Call

_CAPTURED = ("captured", *MODEL, "--weights", "{files}/weights.safetensors", "--steps", "2", "--update",
             "{files}/update.safetensors")  # fmt: skip
_DOSE = ("dose", *DATA, "--victims", "1", "--public", "20")
_FOLLOW = ("follow", *DATA, "--victims", "1", "--steps", "2", *ROUNDS, "--at", "0")
_LINT = ("lint", "--shape", "1,8,8")
_PROTOCOL = ("train", *TASK, *DRY, "--protocol")


def _own(name: str) -> tuple[str, ...]:
    return "--model", f"{{files}}/models.py:{name}"


def _defended(name: str) -> tuple[str, ...]:
    return "--defense", f"{{files}}/defenses.py:{name}"


SANE = (("audit", *DATA, "--victims", "1", "--steps", "2", "--decoys", "3", *_own("compiled")),)
"""Those that must be accepted."""
CALLS = tuple(
    Call("found", words)
    for words in (
        ("train", *TASK, *ROUNDS, *_defended("labels_beyond")),
        ("check", *TASK, "--sent="),
        *(("check", *DATA, *_own(name), "--sent", _own(name)[1]) for name in ("gives_nan", "detaches", "gives_none")),
        ("check", *DATA, *_own("nan_weights"), "--sent", _own("nan_weights")[1]),
        (*_DOSE, *MODEL, f"--noise={'+'.join(['1'] * 20000)}"),
        *((*_LINT, *_own(name)) for name in ("nan_weights", "gives_nan", "gives_infinity", "gives_one_row")),
        *((*_LINT, *MODEL, *_defended(name)) for name in ("gives_nan", "gives_infinity")),
        *((*_CAPTURED, "--shape", "1,8,8", "--labels", labels) for labels in ("nan", "inf", "1e308", "3" * 400)),
        *((*_CAPTURED, "--shape", shape) for shape in ("1,99999999999999999999,8", "1,20000,20000")),
        *(
            (*_FOLLOW, *_own(name))
            for name in ("without_init", "on_meta", "lazy", "traced", "raises_later", "detaches_input")
        ),
        *((*_DOSE, *_own(name)) for name in ("gives_one_row", "gives_infinity")),
        (*_DOSE, *MODEL, "--out="),
        ("calibrate", *SHORT, *ROUNDS, *DRY, "--defense", "noise:sigma=0.01", "--allow=-1"),
        ("tune", *SHORT, *DRY, "--attack", "ig", "--trials", "2", "--shadows", "1", "--at-once=1000000000"),
        ("tune", *SHORT, *DRY, "--attack", "ig", "--trials", "2", "--shadows", "1", "--victims=1000000000"),
        (*_DOSE, *MODEL, "--out={files}"),
        (*_LINT, *MODEL, "--classes=1000000000"),
        ("search-policies", *TASK, "--candidates", "1", "--images", "2", "--epochs", "1", f"--out={'x' * 5000}"),
        (*_CAPTURED, "--shape", "1,8,8", f"--truth={'x' * 5000}"),
        ("train", *TASK, *DRY, *ROUNDS, "--workers=-1"),
        ("follow", *SHORT, *DRY, *ROUNDS, "--at=1+1"),
        ("report", "{files}/run", "--out={files}/text.txt"),
        (*_DOSE, *MODEL, "--plan=,"),
        ("audit", *DATA, "--victims", "1", "--steps", "2", "--decoys", "3", *_own("gives_one_row")),
        ("audit", *SHORT, *DRY, "--minutes", "99999999999999999999"),
        ("audit", *SHORT, *DRY, "--minutes", "1e-320"),
        ("audit", *SHORT, *DRY, "--delta", "0"),
        ("audit", *TASK, *DRY, "--victims", "1", "--attack", "bayes:pixels=99999999999999999999"),
        ("audit", *DATA, *DRY, "--victims", "1", "--steps", "2", "--model", "vgg16-bn:dropout=2"),
        ("audit", *DATA, *DRY, "--victims", "1", "--steps", "2", "--model", "vit-released:depth=0"),
        ("audit", *DATA, *DRY, "--victims", "1", "--steps", "2", "--model", "cnn-bayes:hidden=0"),
        ("lint", *MODEL, "--shape", "1,8,8", "--sarif="),
        ("captured", *_CAPTURED[1:], "--shape", "1,8,8", "--config=/dev/null"),
        ("reproduce", "bayes/fig4", "--scale", "smoke", *DRY, "--results=/proc/self/none"),
        ("sweep", *SHORT, "--attack", "ig", *DRY, "--on=local:1000000000"),
        ("sweep", *SHORT, "--attack", "ig", *DRY, f"--on=local:{'9' * 5000}"),
        ("tune", *SHORT, "--attack", "ig", "--trials", "2", "--shadows", "1", *DRY, f"--name={'x' * 5000}"),
        (*_PROTOCOL, "ig-120:lr=99999999999999999999"),
        (*_PROTOCOL, "ppp:epochs=1000000000"),
        (*_PROTOCOL, "fedsgd:lr=1e-320"),
        ("train", *TASK, *ROUNDS, *DRY, "--loss="),
        ("tune", *SHORT, "--attack", "ig", "--trials", "2", "--shadows", "1", *DRY, "--sampler="),
    )
)
