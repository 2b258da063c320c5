"""What a scale leaves out of an item, in words."""

from dosimeter.auditing import AUTO
from dosimeter.papers.item import Case, Item, Scale, batches_of, rounds_of
from dosimeter.sweeps import Course, Trial


def missing(item: Item, scale: Scale) -> list[str]:
    """What a scale leaves out, in words."""
    small, said = item.at(scale), []
    if len(small.cases) < len(item.cases):
        said.append(f"{len(small.cases)} of {len(item.cases)} rows")
    each = (
        ("victims", "victims"),
        ("batch", "images in an update"),
        ("steps", "steps of searches"),
        ("round", "rounds of training"),
    )
    for what, of in each:
        said += _less(what, of, small.cases, item.cases)
    said += _words(small.cases, item.cases)
    trains = any(case.course for case in item.cases)
    if trains and not any(case.course for case in small.cases):
        said.append("no training, so no accuracy")
    elif trains and small.seeds < item.seeds:
        said.append(f"{small.seeds} of {item.seeds} trainings")
    if any(case.course for case in small.cases):
        lost = sum(bool(all_.course) and not one.course for one, all_ in _pairs(small.cases, item.cases))
        said += [f"no training in {lost} rows"] if lost else []
    return said


def _words(small: tuple[Case, ...], whole: tuple[Case, ...]) -> list[str]:
    """What else is cut: settings to choose among, batches of a round, training before attacks, attacks of ours."""
    pairs = _pairs(small, whole)
    said = {
        f"{len(one.tries)} of {len(all_.tries)} settings tried": None
        for one, all_ in pairs
        if len(one.tries) < len(all_.tries)
    }
    for one, all_ in pairs:
        for mine, theirs in ((one.trial, all_.trial), (one.course, all_.course)):
            if mine is None or theirs is None or mine.protocol == theirs.protocol:
                continue
            if mine.protocol is None:
                said["models are attacked before their training"] = None
            else:
                said[f"{batches_of(mine.protocol)} batches of a client in a round in place of all"] = None
    panels = {one.panel for one, _ in pairs if one.trial is not None and one.ours and one.panel != AUTO}
    said |= {
        f"{one.points} of {all_.points} points": None for one, all_ in pairs if one.pair and one.points < all_.points
    }
    said |= {f"{each} steps of every search of ours": None for each in sorted(panels, key=str)}
    if any(all_.ours and not one.ours for one, all_ in pairs if one.trial is not None):
        said["some rows by the paper's attack alone"] = None
    return list(said)


def _pairs(small: tuple[Case, ...], whole: tuple[Case, ...]) -> list[tuple[Case, Case]]:
    """Rows that are run, with what they are cut from."""
    all_ = {case.name: case for case in whole}
    return [(one, all_[one.name]) for one in small if not one.needs]


def _less(what: str, of: str, small: tuple[Case, ...], whole: tuple[Case, ...]) -> list[str]:
    """How many of something there are in place of how many, where these are fewer."""
    pairs = set()
    for one, all_ in _pairs(small, whole):
        for mine, theirs in ((one.trial, all_.trial), (one.course, all_.course)):
            left, right = (getattr(each, what, None) for each in (mine, theirs))
            if left is not None and left != right:
                pairs.add((left, right or _full(what, theirs)))
    return [f"{few} of {many} {of}" for few, many in sorted(pairs, key=str)]


def _full(what: str, of: Trial | Course | None) -> object:
    """How many there are where nothing is said."""
    if what == "round" and of is not None and of.protocol:
        return rounds_of(of.protocol)
    return "the attack's own"
