"""Finite-sum coupled compositional optimization and constrained training on PyTorch Lightning.

The public names are imported on first use, so that ``import fcco_lightning`` costs nothing.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "algorithms": "ALEXR ALEXR2 BSGD DoubleLoop MOAP MSVR OOA SGD SMD SOAP SONEX SONX SOX SOXBoost Algorithm "
    "SingleLoop TwoDraws",
    "ambiguity": "AmbiguitySet CappedSimplex",
    "constraints": "Constraint GeometricRho HingePenalty MeanAtMost MeanDifferenceAtMost NonForgetting "
    "Penalty QuantileScores RawScores ROCFairness SmoothedHingePenalty SquaredHingePenalty StandardScores",
    "data": "BalancedSampling Columns Encoding GroupBy GroupSampling Groups ImageTransform OwnerSampling Sampling "
    "Splits TensorTable TwoDraws UniformSampling",
    "data.datamodules": "Classes ContinualCLIPDataModule DigitImages DigitsCLIPDataModule GroupedImageDataModule "
    "GroupedTabularDataModule ImageSplits LabelledImages Pairs SyntheticDataModule TabularDataModule",
    "errors": "CheckpointError ConfigError DataError FCCOError NonFiniteError StateIndexError",
    "estimators": "EMA CorrectedEMA DualMirror DualProx Estimator Minibatch Range ScaledEMA",
    "evaluation": "BinaryEvaluation ContinualEvaluation Evaluation GroupEvaluation TaskEvaluation default_evaluation",
    "models": "BatchNetwork CLIPModel ParameterGroup TabularMLP TimmModel",
    "objectives": "AUC ChiSquareGroupDRO CrossEntropy CrossEntropyLoss CVaRGroupDRO GlobalContrastive GroupObjective "
    "InfoNCE KLGroupDRO LogisticLoss LogisticPair MultiLabelLoss MultiTaskGroupDRO Objective PairLoss Quantity "
    "RowDomain "
    "SigmoidPair SoftRate "
    "SquaredHingePair SquaredLoss SquaredPair WorstGroupDRO",
    "outer": "Hinge MoreauEnvelope MoreauSmoothing NoSmoothing OuterFunction Smoothing",
    "engine": "Engine InnerFunctions Problem Surrogate",
    "state": "DualState",
    "steps": "AdamType HeavyBall ProximalSGD",
    "training": "FCCOModule StepAtFractions",
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _HOME.items() for name in names.split()}

__all__ = ["__version__", *sorted(_MODULE_OF)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
