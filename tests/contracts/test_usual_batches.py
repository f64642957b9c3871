"""What is arranged for usual batches is what is arranged for any, and says itself which batches are usual."""

from itertools import combinations

import pytest
import torch

from fcco_lightning.constraints import Constraint
from fcco_lightning.objectives.two_steps import first_tensor, in_two_steps
from tests.contracts.registry_constraints import CASES as CONSTRAINTS
from tests.contracts.registry_objectives import CASES as OBJECTIVES
from tests.contracts.sampled import Bench, N

CASES = {**OBJECTIVES, **{f"constraint: {name}": case for name, case in CONSTRAINTS.items()}}


def batches(bench):
    """All of one and of four samples, and some of six with unequal weights; with the samples."""
    for index in [*combinations(range(N), 1), *combinations(range(N), 4)]:
        yield list(index), bench.batch(index)[bench.name]
    for index in list(combinations(range(N), 6))[::7]:
        yield list(index), bench.weighted(list(index), [1 + i % 3 for i in index])[bench.name]


def offers(name, step):
    part = CASES[name].make()
    if step == "direct" and isinstance(part, Constraint):
        return False
    first = "arrange" if step == "rows" else "arrange_direct"
    whole = "inner" if step == "rows" else "direct"
    if not (in_two_steps(part, first, whole) and in_two_steps(part, f"{first}_usual", first)):
        return False
    bench = Bench(CASES[name])
    columns = bench.batch(range(N))[bench.name]
    like = first_tensor(bench.network(columns["x"]))
    return getattr(bench.part, f"{first}_usual")(columns, like) is not None


WITH_ROWS = [name for name in CASES if offers(name, "rows")]
WITH_DIRECT = [name for name in CASES if offers(name, "direct")]


def test_the_common_ones_have_the_form():
    kinds = {type(CASES[name].make()).__name__ for name in WITH_ROWS}
    assert kinds >= {"CVaRGroupDRO", "AUCMargin", "ROCFairness", "MeanAtMost", "MeanDifferenceAtMost", "EqualizedOdds"}
    assert {type(CASES[name].make()).__name__ for name in WITH_DIRECT} >= {"AUC", "AUCMargin", "CrossEntropy"}


@pytest.mark.parametrize("name", WITH_ROWS)
def test_rows(name):
    bench, seen = Bench(CASES[name]), set()
    for _, columns in batches(bench):
        outputs = bench.network(columns["x"])
        like = first_tensor(outputs)
        usual, known = bench.part.arrange_usual(columns, like), bench.part.arrange(columns, like)
        whole = known.index.tolist() == list(range(bench.engine.problem.all_terms[0].num_rows))
        assert bool(usual.holds) == whole
        if whole:
            found, expected = (bench.part.values(outputs, given) for given in (usual.given, known.given))
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        seen.add(whole)
    assert seen == {True, False} or name == "constraint: mean of everyone"


@pytest.mark.parametrize("name", WITH_DIRECT)
def test_direct(name):
    bench = Bench(CASES[name])
    needed = bench.objective.direct_subsets(bench.columns) or []
    for index, columns in batches(bench):
        outputs = bench.network(columns["x"])
        like = first_tensor(outputs)
        usual, known = (getattr(bench.part, f"arrange_direct{form}")(columns, like) for form in ("_usual", ""))
        assert bool(usual.holds) == all(bool(mask[index].any()) for mask in needed)
        if usual.holds:
            found, expected = (bench.part.direct_value(outputs, given) for given in (usual.given, known))
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
