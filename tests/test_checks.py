"""Checks of arguments return the value, or refuse it by name."""

import pytest

from fcco_lightning import LabelSampling, MeanAveragePrecision, RankingEvaluation
from fcco_lightning.checks import at_least, below_one, finite, fraction, inside, non_negative, positive
from fcco_lightning.errors import ConfigError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("check", "accepted", "refused"),
    [
        (positive, [1e-300, 1, 2.5], [0, -1.0, NAN, INF, "theorie", None, True]),
        (non_negative, [0, 1e-300, 3], [-1e-300, NAN, INF, "theorie", None, True]),
        (finite, [-3.0, 0, 1e300], [NAN, INF, -INF, "theorie", None, True, False]),
        (fraction, [1e-300, 0.5, 1], [0, -0.1, 1.0000001, NAN, INF, "theorie", None, True]),
        (below_one, [0, 1e-300, 0.999999], [-0.1, 1, NAN, INF, "theorie", None, True, False]),
        (inside, [1e-300, 0.5, 0.999999], [0, 1, -0.1, NAN, INF, "theorie", None, True]),
        (lambda name, value: at_least(name, value, 2), [2, 3.0, 10**9], [1, 2.5, NAN, INF, "theorie", None, True]),
    ],
    ids=["positive", "non_negative", "finite", "fraction", "below_one", "inside", "at_least"],
)
def test_checks_return_the_value_or_name_the_argument(check, accepted, refused):
    for value in accepted:
        assert check("size", value) == value
    for value in refused:
        with pytest.raises(ConfigError, match=r"^size must .*got (-?[\d.e-]+|nan|-?inf|True|False|'theorie'|None)\.$"):
            check("size", value)


@pytest.mark.parametrize("check", [positive, finite, lambda name, value: at_least(name, value, 1)])
def test_a_number_that_no_float_holds_is_refused(check):
    with pytest.raises(ConfigError, match=r"^size must "):
        check("size", 10**400)


def test_a_whole_float_becomes_an_int():
    assert isinstance(at_least("K", 3.0, 1), int)


@pytest.mark.parametrize("part", [LabelSampling, MeanAveragePrecision, RankingEvaluation])
def test_what_stands_for_unknown_labels_is_neither_a_label_nor_equal_to_nothing(part):
    assert [part(missing=value).missing for value in (None, -1, 2.5)] == [None, -1, 2.5]
    for value in (0, 1, True, False, NAN, INF, "x", [1]):
        with pytest.raises(ConfigError, match=r"^missing must be None or a finite number other .* pass missing=-1\.$"):
            part(missing=value)
