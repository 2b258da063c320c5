"""The public surface is the one that is written down, and nothing leaves it without a word."""

import surface


def test_the_surface_is_the_one_that_is_recorded() -> None:
    recorded, now = surface.RECORD.read_text().splitlines(), surface.lines()
    assert sorted(set(now) ^ set(recorded)) == [], "run python tests/surface.py, which says what CHANGELOG.md must have"


def test_what_is_removed_must_be_said() -> None:
    before = ["dm.audit(model, victims, seed=0)", "dm.old(x)", "dosimeter audit --seed --steps"]
    now = ["dm.audit(model, victims, more=1)", "dm.new(x)", "dosimeter audit --seed"]
    gone = ["dm.audit(seed)", "dm.old", "dosimeter audit --steps"]
    assert surface.unsaid(before, now, "## Unreleased\n") == gone
    assert surface.unsaid(before, before, "## Unreleased\n") == []
    said = "\n".join(f"- `{each}` is gone." for each in gone)
    assert surface.unsaid(before, now, f"## Unreleased\n{said}\n") == []
    assert surface.unsaid(before, now, f"## Unreleased\n\n## 0.1.0\n{said}\n") == gone  # which was another release
