"""Tuned presets: a file names an attack by what it does, and no victim had a part in it."""

from dataclasses import replace
from pathlib import Path

import pytest

from dosimeter import data, fingerprint
from dosimeter.attacks.presets import tuned
from dosimeter.attacks.presets.tuned import Tuned, words_with
from dosimeter.auditing import Audit, part
from dosimeter.auditing.job import Job
from dosimeter.errors import SettingError
from dosimeter.sweeps import Trial
from dosimeter.sweeps.trial import forget
from dosimeter.task import load_task
from dosimeter.tuning import presets

ATTACK = "bayes:density=cosine,steps=3,lr=0.2"
PRESET = Tuned(format=1, name="mine", attack=ATTACK, untuned="bayes:density=cosine,steps=3", shadows=["train:7"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    presets.write(PRESET, tmp_path / "tuned/mine.toml")
    return tmp_path


def test_a_file_survives_and_is_found_by_its_name_its_path_and_in_a_named_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = replace(PRESET, search={"image steps": 3, "space": 'a"b'}, scores={"tuned": {"psnr": 1.5}}, images=["ab"])
    presets.write(full, here / "tuned/mine.toml")
    assert tuned.read("mine") == tuned.read("tuned/mine.toml") == full
    made = part("attack", "tuned:mine")
    assert made == replace(part("attack", ATTACK), name="tuned mine", shadows=("ab",))
    (here / "tuned").rename(here / "others")
    with pytest.raises(SettingError, match="there is none yet"):
        part("attack", "tuned:mine")
    monkeypatch.setenv("DOSIMETER_TUNED", str(here / "others"))
    assert part("attack", "tuned:mine") == made


def test_a_trial_is_told_by_what_the_file_says_of_the_attack(here: Path) -> None:
    trial = Trial(model="lenet", attack="tuned:mine", victims=1)
    before = trial.prepare().digest
    presets.write(replace(PRESET, scores={"tuned": {"psnr": 20.0}}), here / "tuned/mine.toml")
    forget()
    assert trial.prepare().digest == before  # evidence changes no result
    presets.write(replace(PRESET, attack=ATTACK.replace("0.2", "0.3")), here / "tuned/mine.toml")
    forget()
    assert trial.prepare().digest != before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("format = 1", "has no name"),
        ("not toml", "expected a tuned attack as dosimeter tune writes it"),
        ('format = 2\nname = "a"\nattack = "ig"\nuntuned = "ig"', "of format 1, got 2"),
        ('format = 1\nname = "a"\nattack = "igg"\nuntuned = "ig"', "Unknown attack 'igg'"),
        ('format = 1\nname = "a"\nattack = "labels"\nuntuned = "ig"', "expected the words of a search"),
        ('format = 1\nname = "a"\nattack = "ig"\nuntuned = "ig"\nstrange = 1', "strange"),
    ],
)
def test_bad_files_are_refused_in_a_line(here: Path, text: str, said: str) -> None:
    (here / "tuned/mine.toml").write_text(text)
    with pytest.raises(SettingError, match=said) as refused:
        part("attack", "tuned:mine")
    assert "\n" not in str(refused.value)
    assert "mine.toml" in str(refused.value)


def test_other_settings_beside_a_tuned_attack_are_refused(here: Path) -> None:
    with pytest.raises(SettingError, match="takes no --steps"):
        part("attack", "tuned:mine", steps=100)
    with pytest.raises(SettingError, match="in that folder there is mine"):
        part("attack", "tuned:other")


def test_victims_by_whom_an_attack_was_tuned_are_refused(here: Path) -> None:
    task = load_task("lenet", "mnist-5k", seed=0)
    victims = data.pick(task.dataset, 2, seed=0)
    image = fingerprint.of(victims.images[1, 0])
    presets.write(replace(PRESET, images=[image]), here / "tuned/mine.toml")
    attack = part("attack", "tuned:mine")
    with pytest.raises(SettingError, match=f"got number {int(victims.indices[1, 0])} of the data"):
        Job(Audit(model=task.model, victims=victims, attack=attack))
    Job(Audit(model=task.model, victims=victims.take(slice(1)), attack=attack))


def test_settings_replace_those_of_the_words() -> None:
    assert words_with("ig:tv=0.1,lr=1", {"lr": 1 / 3, "restarts": 2}) == "ig:tv=0.1,lr=0.333333,restarts=2"
    assert words_with("ig", {}) == "ig"
