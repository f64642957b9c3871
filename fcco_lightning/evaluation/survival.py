"""Figures of survival times that may be censored."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fcco_lightning.checks import at_least, positive
from fcco_lightning.evaluation.base import Evaluation, Final, Pictures, require_columns
from fcco_lightning.evaluation.metrics.survival import (
    Array,
    StepFunction,
    breslow_log_hazard,
    brier_score,
    concordance,
    just_before,
    kaplan_meier,
    partial_likelihood,
    survival_probability,
    uncensored_probability,
    uno_concordance,
)
from fcco_lightning.evaluation.pictures import History, plot_calibration
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import binary_scores
from fcco_lightning.objectives.others.cox import survival

_Events = npt.NDArray[np.bool_]

_LEAST_UNCENSORED = 0.05
_GRID = 50


class SurvivalEvaluation(Evaluation):
    r"""Concordance, Brier score and calibration of a proportional hazards model.

    The outputs are log risks h, shape (n,) or (n, 1); the columns are ``time`` (n,) and ``event`` (n,), 1 for an event
    and 0 for a censored sample.  Figures that are undefined on a split, because it lacks events, are NaN.

    - ``c_index``: Harrell's concordance, 0.5 for a constant risk;
    - ``c_index_ipcw``: the concordance of Uno et al., which does not depend on the distribution of censoring;
    - ``integrated_brier``: the Brier score, weighted for censoring, averaged over the time from the first event to the
      horizon; 0.25 if the predicted survival is always one half;
    - ``loss``: the mean negative log partial likelihood of the events (ties by Breslow's method).

    Survival is ``exp(-H(t) exp(h))`` with Breslow's cumulative baseline hazard H of the split itself, so that figures
    of different splits are comparable but do not show a shift in the baseline.  The picture ``calibration.png`` shows
    it: it uses H of the training split for all splits.  Predicted and observed survival at the median time of events
    are also listed in ``report.json``, for groups of increasing risk; equal risks are in the same group.

    Args:
        horizon: The time up to which survival is evaluated, > 0; None for the last event at which the probability of
            not being censored is still above 5 %.
        groups: The number of groups of the calibration, >= 1.

    Raises:
        ConfigError: if an argument is out of range.
    """

    bar = ("c_index",)

    def __init__(self, horizon: float | None = None, groups: int = 5) -> None:
        self.horizon = None if horizon is None else positive("horizon", horizon)
        self.groups = at_least("groups", groups, 1)

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        sample = time, event, _ = _sample(outputs, batch, self)
        if not event.any():
            self.warn_of_undefined(
                "c_index, integrated_brier and loss", f": all {len(time)} samples of a split are censored"
            )
            return dict.fromkeys(("c_index", "c_index_ipcw", "integrated_brier", "loss"), math.nan)
        horizon = self._horizon(time, event)
        return {
            "c_index": concordance(*sample),
            "c_index_ipcw": uno_concordance(*sample, horizon),
            "integrated_brier": self._integrated_brier(*sample, horizon),
            "loss": partial_likelihood(*sample),
        }

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:
        """Return ``calibration``: size, predicted and observed survival of groups of increasing risk, and the time."""
        sample = time, event, _ = _sample(outputs, batch, self)
        if not event.any():
            return {}
        middle = _median(time[event])
        return {
            "num_events": int(event.sum()),
            "calibration_time": middle,
            "calibration": self._calibration(*sample, breslow_log_hazard(*sample), middle),
        }

    def pictures(self, history: History, final: Final) -> Pictures:
        """Return ``calibration.png`` with the baseline hazard of the training split, and ``constraints.png``."""
        return {"calibration.png": partial(self._draw_calibration, final), **super().pictures(history, final)}

    def _draw_calibration(self, final: Final, path: Path) -> Path | None:
        samples = {name: _sample(*split, self) for name, split in final.items()}
        samples = {name: sample for name, sample in samples.items() if sample[1].any()}
        if not samples:
            return None
        time, event, risk = samples["train"] if "train" in samples else next(iter(samples.values()))
        log_hazard, middle = breslow_log_hazard(time, event, risk), _median(time[event])
        groups = {name: self._calibration(*sample, log_hazard, middle) for name, sample in samples.items()}
        return plot_calibration(groups, path, horizon=middle)

    def _horizon(self, time: Array, event: _Events) -> float:
        if self.horizon is not None:
            return self.horizon
        enough = event & (uncensored_probability(time, event)(just_before(time)) > _LEAST_UNCENSORED)
        return float(time[enough].max() if enough.any() else time[event].min())

    def _integrated_brier(self, time: Array, event: _Events, risk: Array, horizon: float) -> float:
        first = float(time[event].min())
        if not first < horizon:
            self.warn_of_undefined(
                "integrated_brier and averages over time", f": the first event, at {first:g}, is not before {horizon:g}"
            )
            return math.nan
        t = np.linspace(first, horizon, _GRID)
        predicted = survival_probability(breslow_log_hazard(time, event, risk), risk, t)
        return float(np.trapezoid(brier_score(time, event, predicted, t), t)) / (horizon - first)

    def _calibration(
        self, time: Array, event: _Events, risk: Array, log_hazard: StepFunction, t: float
    ) -> list[dict[str, float]]:
        lower = np.searchsorted(np.sort(risk), risk)  # number of lower risks; equal for equal risks
        part = lower // -(-len(risk) // self.groups)
        return [
            {
                "size": int(rows.sum()),
                "predicted": float(survival_probability(log_hazard, risk[rows], [t]).mean()),
                "observed": float(kaplan_meier(time[rows], event[rows])(t)),
            }
            for rows in (part == label for label in np.unique(part))
        ]


def _median(times: Array) -> float:
    """The lower median, which is one of the times."""
    return float(np.quantile(times, 0.5, method="lower"))


def _sample(outputs: Tensor, batch: Columns, needed_by: Evaluation) -> tuple[Array, _Events, Array]:
    """Return times and log risks, float64, and events as truth values, shape (n,) each; the mean risk is 0."""
    require_columns(batch, "time", "event", figures="figures of survival times")
    time, event = survival(batch, needed_by)
    risk = binary_scores(outputs).double()
    return time.double().cpu().numpy(), event.cpu().numpy(), (risk - risk.mean()).cpu().numpy()
