"""Every number and ordering of the papers that can be judged here, beside what was measured: claims.md of claims.yaml.

uv run python examples/benchmarks/claims.py
"""

from collections import Counter
from math import hypot
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
NOT_TESTABLE = "not testable here"
_HEAD = """\
# Claims of the papers

What five papers report, and what came out here. Written by `uv run python examples/benchmarks/claims.py` from
[claims.yaml](claims.yaml). The figures stand in [the benchmarks](README.md) and their pages of details, the tests in
`tests/`. The keys of papers and errata are those of `fcco_lightning/papers.md`.

A number counts as reproduced if it is within two standard deviations of the printed one (both deviations together).
Where other data are named they show the ordering only, not of its size. ± is the standard deviation over seeds.
"""


def read(path: Path = FOLDER / "claims.yaml") -> dict[str, Any]:
    """The claims, each with its verdict."""
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for claim in found["claims"]:
        claim["verdict"] = verdict(claim)
    return found


def verdict(claim: dict[str, Any]) -> str:
    """As it is written; else whether the means agree, or that nothing was measured."""
    if "verdict" in claim:
        return str(claim["verdict"])
    if "ours" not in claim:
        return NOT_TESTABLE
    (printed, deviation), (ours, own) = claim["printed"], claim["ours"]
    return "reproduced" if abs(printed - ours) <= 2 * hypot(deviation, own) else "refuted"


def page(found: dict[str, Any]) -> str:
    """The page: how many claims have which verdict, a table for every paper, the commands."""
    claims = found["claims"]
    counts = Counter(claim["verdict"] for claim in claims)
    parts = [_HEAD, f"{len(claims)} claims: {', '.join(f'{n} {kind}' for kind, n in counts.most_common())}.\n"]
    for paper in dict.fromkeys(claim["paper"] for claim in claims):
        rows = [_row(claim) for claim in claims if claim["paper"] == paper]
        head = "| where | claim | printed | here | seeds | by | verdict |\n|---|---|---|---|---|---|---|\n"
        parts.append(f"## {paper}\n\n{head}{''.join(rows)}")
    commands = "".join(f"| {key} | `{command}` |\n" for key, command in found["commands"].items())
    return "\n".join([*parts, f"## Commands\n\n| | |\n|---|---|\n{commands}"])


def _row(claim: dict[str, Any]) -> str:
    note = f" ({claim['note']})" if "note" in claim else ""
    by = claim.get("command") or f"`{claim['test'].rpartition('::')[2]}`" if "ours" in claim else ""
    cells = [claim["where"], claim["claim"], _value(claim.get("printed")), _value(claim.get("ours"))]
    return f"| {' | '.join([*cells, str(claim.get('seeds', '')), by, claim['verdict'] + note])} |\n"


def _value(value: Any) -> str:
    return f"{value[0]:g} ± {value[1]:g}" if isinstance(value, list) else str(value or "")


if __name__ == "__main__":
    target = FOLDER / "claims.md"
    target.write_text(page(read()), encoding="utf-8")
    print(target)
