"""The dose beside what attacks reached: an estimate from above and a search from below, image by image."""

from dosimeter.auditing import Result
from dosimeter.auditing.dosed import Dosed, Pair
from dosimeter.doses.result import Doses


def beside(doses: Doses, result: Result) -> Dosed | None:
    """Every image that both say something of; None where there is none."""
    told = {
        (each.id, each.place): psnr
        for each in doses.images
        if (psnr := each.psnr if each.here is None else each.here) is not None
    }
    best: dict[tuple[str, int], tuple[float, str]] = {}
    for name, found in _tried(result):
        for record in found.records:
            key = (found.victims.ids[record.victim], record.image)
            score = record.scores.get("psnr")
            if score is not None and key in told and score > best.get(key, (-1e9, ""))[0]:
                best[key] = (score, name)
    pairs = tuple(
        Pair(id=key[0], place=key[1], predicted=told[key], reached=best[key][0], attack=best[key][1])
        for key in told
        if key in best
    )
    return Dosed(prior=doses.prior, share=doses.share, pairs=pairs) if pairs else None


def _tried(result: Result) -> list[tuple[str, Result]]:
    """All attacks that are no controls."""
    tried = [(each.attack, each.result) for each in result.panel if each.role != "control" and each.result is not None]
    return tried or [(str(result.settings["attack_name"]), result)]
