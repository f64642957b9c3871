"""report.html, read by a strict parser of HTML."""

from xml.etree import ElementTree

import html5lib
import pytest
import yaml

from fcco_lightning.reports.left_out import LeftOut
from fcco_lightning.reports.page import report_page
from fcco_lightning.reports.summary_table import VACUOUS_WARNING, table_makers

ODD = "<b>50% & \"more\"</b> 'x' {{ name }}"
INTERVAL = {"h": 0.1, "low": -0.05, "high": 0.2, "noise": 0.03, "method": "binomial"}
REPORT = {
    "train": {"auc": 0.9, "constraints": {ODD: -0.1, "b": 0.2}, "worst_violation": 0.2, "vacuous": True},
    "test": {
        "auc": 0.8,
        "constraints": {ODD: 0.1, "b": -0.3},
        "intervals": {ODD: INTERVAL},
        "groups": [{"name": f"{ODD}{i}", "size": i} for i in range(30)],
    },
    "unconstrained": {"test": {"auc": 0.85}},
    "seconds": 2.0,
    "config": {"seed": 0, "model": {"name": ODD}},
}


def parsed(page: str) -> ElementTree.Element:
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)


def tables(page: ElementTree.Element) -> dict[str, list[list[str]]]:
    sections = [section for section in page.iter("section") if section.find(".//table") is not None]
    return {
        section.findtext("h2"): [["".join(cell.itertext()) for cell in row] for row in section.iter("tr")]
        for section in sections
    }


@pytest.fixture(scope="module")
def page():
    return parsed(report_page(ODD, ODD, LeftOut().make_all(table_makers(REPORT)), config=REPORT["config"]))


def test_names_are_shown_as_they_are(page):
    assert page.findtext(".//title") == page.findtext(".//h1") == page.findtext(".//p[@class='headline']") == ODD
    assert not list(page.iter("b"))
    assert yaml.safe_load(page.findtext(".//pre")) == REPORT["config"]
    assert page.find(".//p[@class='warning']").text == VACUOUS_WARNING


def test_all_rows_of_all_tables_are_there(page):
    found = tables(page)
    assert list(found) == ["Summary of the run", "Groups (test)", "Constraints; intervals on test: exact binomial"]
    summary, groups, constraints = found.values()
    assert summary[0] == ["metric", "train", "test", "test unconstrained"]
    assert ["AUC", "0.9000", "0.8000", "0.8500"] in summary
    assert [row[0] for row in summary[1:]] == ["AUC", "worst violation, max h", "constraints vacuous"]
    assert [row[0] for row in groups[1:]] == [f"{ODD}{i}" for i in range(30)]
    assert constraints[1:] == [
        [ODD, "-0.1000", "0.1000", "[-0.0500, +0.2000]", "0.0300"],
        ["b", "0.2000", "-0.3000", "-", "-"],
    ]


def test_any_part_may_be_absent():
    assert tables(parsed(report_page("a", None, []))) == {}
