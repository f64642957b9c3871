"""Outer functions f, written as formulas that autograd differentiates, and their smoothings."""

from fcco_lightning.outer.base import MoreauEnvelope, OuterFunction, Range, not_below, slopes
from fcco_lightning.outer.composed import Absolute, Linear, RatioDifference, Shifted
from fcco_lightning.outer.discount import DiscountedGain
from fcco_lightning.outer.dro import ChiSquare, KullbackLeibler, Maximum, WorstCase
from fcco_lightning.outer.elementary import AveragedHinge, Hinge, SmoothedHinge, Square, SquaredHinge
from fcco_lightning.outer.log_exp import (
    KullbackLeiblerOfLog,
    Log,
    LogRatio,
    LogSumExp,
    LogWithTemperature,
    NegativeLog,
    Power,
    Ratio,
    Softplus,
)
from fcco_lightning.outer.multiplied import Multiplied, excess
from fcco_lightning.outer.smoothing import (
    MoreauSmoothing,
    NoSmoothing,
    RandomizedSmoothing,
    Smoothing,
)

__all__ = [
    "Absolute",
    "AveragedHinge",
    "ChiSquare",
    "DiscountedGain",
    "Hinge",
    "KullbackLeibler",
    "KullbackLeiblerOfLog",
    "Linear",
    "Log",
    "LogRatio",
    "LogSumExp",
    "LogWithTemperature",
    "Maximum",
    "MoreauEnvelope",
    "MoreauSmoothing",
    "Multiplied",
    "NegativeLog",
    "NoSmoothing",
    "OuterFunction",
    "Power",
    "RandomizedSmoothing",
    "Range",
    "Ratio",
    "RatioDifference",
    "Shifted",
    "SmoothedHinge",
    "Smoothing",
    "Softplus",
    "Square",
    "SquaredHinge",
    "WorstCase",
    "excess",
    "not_below",
    "slopes",
]
