"""What a gate or lint found, in the forms that pipelines read: JSON, JUnit's XML, SARIF and Markdown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from dosimeter import files
from dosimeter.auditing import Result, Survey
from dosimeter.auditing.gate import FAILS, PASSES, Gate
from dosimeter.auditing.linting.findings import Linted
from dosimeter.auditing.verdict import weigh
from dosimeter.lines import clean
from dosimeter.reports.words import headline
from dosimeter.store import GATES

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


class Source(NamedTuple):
    """Where a model is defined."""

    path: str
    line: int


def write(folder: Path, result: Result | Survey, gate: Gate, limits: dict[str, float]) -> None:
    """All four, beside the run."""
    verdict = weigh(result.pooled if isinstance(result, Survey) else result)
    name, claims = clean(headline(result)), verdict.claims
    said = {"code": gate.code, "sentence": gate.sentence, "limits": limits, "verdict": verdict.kind.value}
    rates = {claim.name: {"hits": claim.rate.hits, "of": claim.rate.of, "p": claim.p} for claim in claims}
    level = {PASSES: "note", FAILS: "error"}.get(gate.code, "warning")
    found = finding("gradient-leakage", level, f"{name}. {gate.sentence}")
    files.replace_json(folder / GATES[0], said | {"rates": rates})
    files.replace(folder / GATES[1], _junit(name, gate, result.seconds))
    files.replace_json(
        folder / GATES[2], sarif({"gradient-leakage": "What can be read out of a client's update"}, [found])
    )
    rows = [f"| {c.name} | {c.rate.hits} of {c.rate.of} | {limits.get(c.name, '-')} | {c.p:.2g} |" for c in claims]
    table = "\n".join(["| rate | with the update alone | limit | p |", "|---|---|---|---|", *rows])
    more = f"To settle it: `{verdict.settles}`\n\n" if verdict.settles else ""
    files.replace(folder / GATES[3], f"**{gate.sentence}**\n\n{name}\n\n{more}{table}\n")


def write_lint(path: Path, found: Linted, source: Source | None) -> None:
    """What lint found, as SARIF."""
    texts = {leak.rule: f"A model that leaks by its structure; what removes it: {leak.remedy}" for leak in found.leaks}
    results = [
        finding(
            leak.rule, leak.level.word, f"{leak.what}. Shown by: {found.command(leak)}", where=leak.where, source=source
        )
        for leak in found.leaks
    ]
    files.replace_json(path, sarif(texts, results))


def sarif(rules: Mapping[str, str], results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A document of one run, with {rule: what it is about}."""
    texts = [{"id": name, "shortDescription": {"text": text}} for name, text in rules.items()]
    run = {"tool": {"driver": {"name": "dosimeter", "rules": texts}}, "results": list(results)}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def finding(rule: str, level: str, text: str, *, where: str = "", source: Source | None = None) -> dict[str, Any]:
    """One result of a rule, in a layer of a model that a file may define."""
    place: dict[str, Any] = {}
    if source is not None:
        region = {"startLine": source.line}
        place["physicalLocation"] = {"artifactLocation": {"uri": source.path}, "region": region}
    if where:
        place["logicalLocations"] = [{"fullyQualifiedName": where, "kind": "member"}]
    found = {"ruleId": rule, "level": level, "message": {"text": text}}
    return found | ({"locations": [place]} if place else {})


def _junit(name: str, gate: Gate, seconds: float) -> str:
    """One test, that fails where the gate does; where nothing can be told it is an error."""
    kind = {PASSES: "", FAILS: "failure"}.get(gate.code, "error")
    inside = f"<{kind} message={quoteattr(gate.sentence)}>{escape(gate.sentence)}</{kind}>" if kind else ""
    counts = f'tests="1" failures="{int(kind == "failure")}" errors="{int(kind == "error")}"'
    case = f'<testcase classname="dosimeter" name={quoteattr(name)} time="{seconds:.3f}">{inside}</testcase>'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuite name="dosimeter" {counts}>{case}</testsuite>\n'
