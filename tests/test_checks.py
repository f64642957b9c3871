import pytest

from fcco_lightning.checks import at_least, below_one, finite, fraction, inside, non_negative, positive
from fcco_lightning.errors import ConfigError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("check", "accepted", "refused"),
    [
        (positive, [1e-300, 1, 2.5], [0, -1.0, NAN, INF, "theorie", None]),
        (non_negative, [0, 1e-300, 3], [-1e-300, NAN, INF, "theorie", None]),
        (finite, [-3.0, 0, 1e300], [NAN, INF, -INF, "theorie", None]),
        (fraction, [1e-300, 0.5, 1], [0, -0.1, 1.0000001, NAN, INF, "theorie", None]),
        (below_one, [0, 1e-300, 0.999999], [-0.1, 1, NAN, INF, "theorie", None]),
        (inside, [1e-300, 0.5, 0.999999], [0, 1, -0.1, NAN, INF, "theorie", None]),
        (lambda name, value: at_least(name, value, 2), [2, 3.0, 10**9], [1, 2.5, True, NAN, INF, "theorie", None]),
    ],
    ids=["positive", "non_negative", "finite", "fraction", "below_one", "inside", "at_least"],
)
def test_checks_return_the_value_or_name_the_argument(check, accepted, refused):
    for value in accepted:
        assert check("size", value) == value
    for value in refused:
        with pytest.raises(ConfigError, match=r"^size must .*got (-?[\d.e-]+|nan|-?inf|True|'theorie'|None)\.$"):
            check("size", value)


@pytest.mark.parametrize("check", [positive, finite, lambda name, value: at_least(name, value, 1)])
def test_a_number_that_no_float_holds_is_refused(check):
    with pytest.raises(ConfigError, match=r"^size must "):
        check("size", 10**400)


def test_a_whole_float_becomes_an_int():
    assert isinstance(at_least("K", 3.0, 1), int)
