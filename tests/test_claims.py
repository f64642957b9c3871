"""The page of claims agrees with its data, and the data with the benchmarks and tests."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples/benchmarks"


@pytest.fixture(scope="module")
def claims():
    spec = importlib.util.spec_from_file_location("claims", FOLDER / "claims.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_generator(claims):
    assert (FOLDER / "claims.md").read_text() == claims.page(claims.read()), "run examples/benchmarks/claims.py"


def test_every_own_figure_stands_where_it_is_said_to(claims):
    found = claims.read()
    assert len(found["claims"]) >= 40
    measured = "".join(page.read_text() for page in (FOLDER / "results").glob("*.md"))
    papers = (ROOT / "fcco_lightning/papers.md").read_text()
    for claim in found["claims"]:
        assert f"### {claim['paper']}\n" in papers
        assert ("ours" in claim) == ("test" in claim or "command" in claim), claim
        assert ("seen" in claim) == ("command" in claim) == ("seeds" in claim), claim
        assert claim["verdict"] in ("reproduced", "refuted") if "ours" in claim else "note" in claim, claim
        for text in claim.get("seen", ()):
            assert text in measured, claim
        if "command" in claim:
            script = next(word for word in found["commands"][claim["command"]].split() if "/" in word)
            assert (ROOT / script).exists() or (ROOT / "configs" / f"{script}.yaml").exists(), script
        if "test" in claim:
            file, _, name = claim["test"].partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(), claim


def test_a_number_is_reproduced_within_two_standard_deviations(claims):
    assert claims.verdict({"printed": [1.0, 0.3], "ours": [2.0, 0.4]}) == "reproduced"
    assert claims.verdict({"printed": [1.0, 0.3], "ours": [2.01, 0.4]}) == "refuted"
    assert claims.verdict({"note": "no data"}) == claims.NOT_TESTABLE
