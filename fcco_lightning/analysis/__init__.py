"""Checks of a solution that theory suggests: Gram matrix, dual values, stationarity, KKT residuals.

For group objectives, whose inner functions g_i are means over the samples of a group, all of them are exact: values and
gradients are those of a whole split.  The certificate of a constrained solution is exact for every objective and
constraint. w denotes all trained parameters, of the network and of the objective.
"""

from fcco_lightning.analysis.certificate import (
    Certificate,
    Samples,
    certificate,
    penalty_multipliers,
    require_certifiable,
)
from fcco_lightning.analysis.diagnosis import GRID, Spectrum, Stationarity, diagnose, spectrum, stationarity
from fcco_lightning.analysis.dual_values import Duals, duals, outer_gradients, remembered_duals, value_of
from fcco_lightning.analysis.inner_jacobian import MAX_VALUES, Jacobian, gram, jacobian, required_size
from fcco_lightning.analysis.intervals import Interval, exact_binomial, intervals

__all__ = [
    "GRID",
    "MAX_VALUES",
    "Certificate",
    "Duals",
    "Interval",
    "Jacobian",
    "Samples",
    "Spectrum",
    "Stationarity",
    "certificate",
    "diagnose",
    "duals",
    "exact_binomial",
    "gram",
    "intervals",
    "jacobian",
    "outer_gradients",
    "penalty_multipliers",
    "remembered_duals",
    "require_certifiable",
    "required_size",
    "spectrum",
    "stationarity",
    "value_of",
]
