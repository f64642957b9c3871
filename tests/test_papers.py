"""Every citation in the repository names a key of papers.md."""

import re
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAPERS = files("fcco_lightning").joinpath("papers.md").read_text()
KEYS = set(re.findall(r"^### (.+ paper)$", PAPERS.split("## Errata")[0], re.MULTILINE))
WORKS = re.findall(r"^- (.+(?:\n  .+)*)", PAPERS, re.MULTILINE)
ROWS = [line.strip("| ").split(" | ") for line in PAPERS.splitlines() if re.match(r"\| [A-Z]+-\d+ \|", line)]
SOURCES = [
    path
    for folder in ("fcco_lightning", "tests", "configs", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".yaml", ".yml", ".md"} and path.name not in {"papers.md", Path(__file__).name}
] + [ROOT / "README.md"]

# what a citation looks like; a text may break its lines within one
PAPER = re.compile(r"\b([A-Z][A-Z0-9-]+\s+paper)\b")
ERRATUM = re.compile(r"\berratum\s+([A-Z]+-\d+)")
WORK = re.compile(r"\b([A-Z][a-z]+)\s+(?:et\s+al\.|and\s+[A-Z][a-z]+),?[^()]{0,60}?\(?((?:19|20)\d\d)\b")
OLD = re.compile(r"\bE-00[0-4]-\d|(?<![\w.,\-\"'/])(?<!\d )(?<!-\.)00[0-4](?!\w|[,.]\d|\.[a-z])")


def cited(expression: re.Pattern[str], text: str) -> list[str]:
    """What the groups of a citation hold, comment signs and line breaks taken out."""
    plain = re.sub(r"\n\s*#?\s*", " ", text)
    return [" ".join(" ".join(m.groups() or (m.group(),)).split()) for m in expression.finditer(plain)]


def unknown(text: str) -> list[str]:
    papers = [c for c in cited(PAPER, text) if c not in KEYS]
    errata = [c for c in cited(ERRATUM, text) if c not in {row[0] for row in ROWS}]
    works = [c for c in cited(WORK, text) if not any(all(part in work for part in c.split()) for work in WORKS)]
    return papers + errata + works


def test_the_five_papers_and_their_errata_are_listed():
    assert {"SONEX paper", "ALEXR paper", "SOX paper", "DRAGO paper", "PG-SMD paper"} == KEYS
    names = [row[0] for row in ROWS]
    assert len(names) == len(set(names)) > 50
    assert {name.rpartition("-")[0] for name in names} == {"SONEX", "ALEXR", "SOX", "DRAGO", "PG"}
    for row in ROWS:
        assert len(row) == 5, row
        assert all(cell.strip() for cell in row), row


def test_citations_name_what_is_listed():
    found = {str(path.relative_to(ROOT)): unknown(path.read_text()) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


def test_citations_have_names_and_not_numbers():
    found = {str(path.relative_to(ROOT)): OLD.findall(path.read_text()) for path in SOURCES}
    assert {path: numbers for path, numbers in found.items() if numbers} == {}


def test_the_checks_see_what_is_not_listed():
    assert unknown("(SONEX paper, F.2; erratum SONEX-4), the\n    # PG-SMD paper, Parikh and Boyd, Title (2014)") == []
    assert unknown("see the FOO paper") == ["FOO paper"]
    assert unknown("(erratum SONEX-99)") == ["SONEX-99"]
    assert unknown("erratum\n    SOX-999") == ["SOX-999"]
    assert unknown("(Nobody et al., 2020)") == ["Nobody 2020"]
    assert unknown("Source: Parikh and Boyd, Title (2013)") == ["Parikh 2013"]
    assert cited(OLD, "0" + "04 F.2, E-0" + "04-4 and (0" + "00: .1)") == ["0" + "04", "E-0" + "04-4", "0" + "00"]
    assert cited(OLD, '0.004, 1,000,000, "004,4,33", test-000.tar, 10 000 bytes') == []
