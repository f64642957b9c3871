"""Further objectives with inner functions, with their formulas written a second time."""


from fcco_lightning import RobustLogistic
from tests.contracts.sampled import Case, N, logistic, mean, scores, table_columns


def robust_logistic(s, columns):
    return mean([logistic(a, y) for a, y in zip(s, columns["y"], strict=True)])


CASES = {
    "robust logistic": Case(
        RobustLogistic,
        scores(),
        table_columns(),
        robust_logistic,
        unbiased=("uniform", "balanced"),
        missing="y",
        bad_outputs=scores(N, 2),
    ),
}
