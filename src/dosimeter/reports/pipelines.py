"""What a gate found, in the forms that pipelines read: JSON, JUnit's XML, SARIF and Markdown."""

from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from dosimeter import files
from dosimeter.auditing import Result, Survey
from dosimeter.auditing.gate import FAILS, PASSES, Gate
from dosimeter.auditing.verdict import weigh
from dosimeter.reports.words import clean, headline
from dosimeter.store import GATES

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def write(folder: Path, result: Result | Survey, gate: Gate, limits: dict[str, float]) -> None:
    """All four, beside the run."""
    verdict = weigh(result.pooled if isinstance(result, Survey) else result)
    name, claims = clean(headline(result)), verdict.claims
    said = {"code": gate.code, "sentence": gate.sentence, "limits": limits, "verdict": verdict.kind.value}
    rates = {claim.name: {"hits": claim.rate.hits, "of": claim.rate.of, "p": claim.p} for claim in claims}
    level = {PASSES: "note", FAILS: "error"}.get(gate.code, "warning")
    finding = {"ruleId": "gradient-leakage", "level": level, "message": {"text": f"{name}. {gate.sentence}"}}
    rule = {"id": "gradient-leakage", "shortDescription": {"text": "What can be read out of a client's update"}}
    run = {"tool": {"driver": {"name": "dosimeter", "rules": [rule]}}, "results": [finding]}
    files.replace_json(folder / GATES[0], said | {"rates": rates})
    files.replace(folder / GATES[1], _junit(name, gate, result.seconds))
    files.replace_json(folder / GATES[2], {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})
    rows = [f"| {c.name} | {c.rate.hits} of {c.rate.of} | {limits.get(c.name, '-')} | {c.p:.2g} |" for c in claims]
    table = "\n".join(["| rate | with the update alone | limit | p |", "|---|---|---|---|", *rows])
    more = f"To settle it: `{verdict.settles}`\n\n" if verdict.settles else ""
    files.replace(folder / GATES[3], f"**{gate.sentence}**\n\n{name}\n\n{more}{table}\n")


def _junit(name: str, gate: Gate, seconds: float) -> str:
    """One test, that fails where the gate does; where nothing can be told it is an error."""
    kind = {PASSES: "", FAILS: "failure"}.get(gate.code, "error")
    inside = f"<{kind} message={quoteattr(gate.sentence)}>{escape(gate.sentence)}</{kind}>" if kind else ""
    counts = f'tests="1" failures="{int(kind == "failure")}" errors="{int(kind == "error")}"'
    case = f'<testcase classname="dosimeter" name={quoteattr(name)} time="{seconds:.3f}">{inside}</testcase>'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuite name="dosimeter" {counts}>{case}</testsuite>\n'
