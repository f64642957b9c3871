"""Every numerical argument has a range: values outside are refused by name, and its ends are accepted."""

import math
import re
from types import UnionType
from typing import get_args, get_type_hints

import pytest
import torch
from torch.nn import Parameter

import fcco_lightning
from fcco_lightning import Hinge, LogisticLoss, RawScores, SoftRate
from fcco_lightning.cli.catalogue import KINDS, members
from fcco_lightning.errors import ConfigError

RANGES = {
    "be a finite number": """
        AveragedHinge.kappa CVaRGroupDRO.threshold ChiSquareGroupDRO.threshold
        Hinge.kappa KLGroupDRO.threshold KLPartialAUC.threshold MeanAtMost.kappa MeanNear.target NonForgetting.kappa
        SmoothedHinge.kappa SoftRate.threshold Softplus.b SquaredHinge.kappa TabularMLP.offset WorstGroupDRO.threshold
    """,
    "be a finite number > 0": """
        ALEXR.tau ALEXR2.eta,lam,nu AUCMargin.margin AdamType.eps,lr AdaptivePenalty.least,rate,start,width
        AugmentedLagrangian.curvature AveragedHinge.rho,sigma ChiSquare.lam0 ChiSquareGroupDRO.lam0
        Clipping.value ConcaveStages.eta,eta_dual DRAGO.alpha Diagnostics.lam,max_values
        DiscountedGain.cutoff,floor,sharpness Distillation.temperature DualProx.tau EntropicMirror.alpha
        EqualStages.eta,eta_dual ErrorProbability.temperature ExponentialPair.scale
        GlobalContrastive.rho HeavyBall.lr Hinge.rho HingeLoss.margin ICPPAC.eta,mu,tau KLGroupDRO.lam0
        KLPartialAUC.lam,tau KullbackLeibler.lam0 KullbackLeiblerOfLog.floor,lam,tau LSVRG.learning_rate
        Lagrangian.rate LatentChoice.scale,sharpness Log.floor,tau LogRatio.floor,tau LogSumExp.theta
        LogWithTemperature.floor,rho ManyClasses.noise MinibatchSGD.learning_rate MoreauEnvelope.lam
        MoreauSmoothing.lam MultilevelSGD.learning_rate NegativeLog.floor,tau
        NeighbourhoodComponents.temperature NuPI.rate OOA.eta_dual PDSCA.alpha PGSMD.gamma,radius
        PGSVRG.eta,eta_dual,gamma,radius ProportionalHazards.censoring ProximalDescent.eta,nu,radius
        ProximalSGD.lr,radius QuantileScores.floor ROCFairness.temperature RandomizedSmoothing.sigma Ratio.floor
        RatesAbove.temperature
        RatioDifference.floor SCENT.alpha SMD.eta_dual SONEX.lam Schedule.decay_spread,objective_lr
        SigmoidPair.scale SmoothMaxPooling.tau SmoothedHinge.lam,rho SmoothedHingePenalty.lam
        SoftRate.temperature Square.c SquaredHinge.rho SquaredHingePair.margin SquaredPair.margin
        StandardScores.floor StronglyConcaveStages.lipschitz SurvivalEvaluation.horizon TabularMLP.scale
        TopShare.temperature ViewContrastive.rho
    """,
    "be a finite number >= 0": """
        ALEXR2.gamma_prime AUC.cross_entropy AUCParity.kappa AdamType.weight_decay Average.gamma_prime
        AveragePrecision.cross_entropy BlockDistributions.noise CVaRPartialAUC.cross_entropy
        ChiSquareBall.rho ChiSquarePenalty.nu ContinualEvaluation.tolerance,tolerance_loss
        CrossEntropyLoss.label_smoothing DemographicParity.kappa Distillation.kappa DualProx.theta
        EqualOpportunity.kappa EqualizedOdds.kappa EuclideanPenalty.nu FourFifthsRule.kappa Garnet.noise
        GradedLists.noise HeavyBall.weight_decay HingePenalty.rho ICPPAC.theta ImageNoise.variance KLBall.rho
        KLPartialAUC.cross_entropy MeanAveragePrecision.cross_entropy RecallAtK.cross_entropy
        KLPenalty.nu MSVR.gamma_prime MeanDifferenceAtMost.kappa MeanNear.kappa NuPI.proportional PredictiveParity.kappa
        ProportionalHazards.tick ProximalSGD.mu ROCFairness.kappa SONEX.gamma_prime,objective_gamma_prime
        SONX.gamma_prime SmoothedHingePenalty.rho SquaredHingePenalty.rho Switching.gamma_prime,tolerance
        WassersteinBall.rho
    """,
    "be a finite number > 1": """
        PNormPush.p Power.p
    """,
    "be a finite number >= 0.004": """
        GlobalContrastive.tau InfoNCE.tau ViewContrastive.tau
    """,
    "be a finite number >= 1": """
        NDCG.sharpness
    """,
    "be a whole number >= 0": """
        ALEXR2.recovery_steps DigitImages.seed GroupEvaluation.most_groups ImageNoise.seed ImageSplits.seed
        RankingEvaluation.most_labels SOXBoost.seed Splits.seed WeightAverage.start
    """,
    "be a whole number >= 1": """
        ALEXR2.K BagSampling.instances_per_bag,negative_bags,positive_bags
        BalancedSampling.batch_size BinaryEvaluation.num_thresholds BlockDistributions.block_size,hidden
        CVaRGroupDRO.num_groups CellSampling.batch_size ChiSquareGroupDRO.num_groups DRAGO.block_size
        DigitBags.size Encoding.pieces Execution.micro_batch,num_samples Garnet.branching,num_features
        GroupMaxForm.num_groups GroupObjective.num_groups
        GroupSampling.groups_per_batch,samples_per_group ICPPAC.K ImageSplits.limit
        KLGroupDRO.num_groups LBFGS.memory LSVRG.block_size
        LabelSampling.labels_per_batch,negatives_per_label,positives_per_label
        LabelledImages.most_pixels LatentChoice.dim ManyClasses.dim MinibatchSGD.block_size
        MultiTaskGroupDRO.num_groups,num_tasks MultilevelSGD.block_size NDCG.top_k NeighbourEvaluation.k
        Pairs.limit,most_pixels
        QuerySampling.negatives_per_query,positives_per_query,queries_per_batch RecallAtK.k
        SOXBoost.first_stage SurvivalEvaluation.groups SyntheticDataModule.num_test,num_train
        TabularMLP.out_features UniformSampling.batch_size WorstGroupDRO.num_groups
        BagSampling.copies,num_batches BalancedSampling.copies,num_batches CellSampling.copies,num_batches
        EventSampling.copies,num_batches GroupSampling.copies,num_batches LabelSampling.copies,num_batches
        QuerySampling.copies,num_batches UniformSampling.copies,num_batches
    """,
    "be a whole number >= 10": """
        DigitImages.num_test,num_train
    """,
    "be a whole number >= 100": """
        TextTokens.vocabulary
    """,
    "be a whole number >= 2": """
        Encoding.quantiles EqualStages.length EventSampling.censored_per_batch,events_per_batch
        Garnet.num_states GaussianGroups.dim GradedLists.items LatentChoice.num_latent ManyClasses.num_classes
        PGSVRG.J,K QuantileScores.knots SampledSoftmax.num_classes
    """,
    "be a whole number >= 3": """
        BlockDistributions.num_distributions GradedLists.dim ProportionalHazards.dim
    """,
    "lie in (0, 1)": """
        BalancedSampling.positive_fraction BestFeasible.confidence GaussianGroups.favoured_share TopShare.share
        Splits.test_fraction WeightAverage.decay
    """,
    "lie in (0, 1]": """
        ALEXR2.gamma,objective_gamma AdamType.beta,beta_prime AugmentedLagrangian.rate Average.gamma
        CVaRGroupDRO.alpha CVaRPartialAUC.max_fpr
        CappedSimplex.alpha FourFifthsRule.ratio GroupAUCAtLeast.least
        GroupEvaluation.alpha HeavyBall.beta MOAP.gamma MSVR.b,gamma PDSCA.gamma,row_gamma
        RankingEvaluation.max_fpr SCENT.gamma SOAP.gamma SONEX.gamma,objective_gamma SONX.gamma
        SOX.gamma,objective_gamma SOXBoost.gamma ScaledAverage.gamma Storm.b Switching.gamma
    """,
    "lie in [0, 1]": """
        ALEXR.theta
    """,
    "lie in [0, 1)": """
        BellmanResidual.discount CVaRPartialAUC.min_tpr Garnet.discount NuPI.smoothing RankingEvaluation.min_tpr
        Splits.val_fraction SyntheticDataModule.val_fraction TabularMLP.dropout TemporalDifference.discount
        ValueEvaluation.discount
    """,
}


EXAMPLES = {  # what a part needs beside the number
    **dict.fromkeys(("AdamType", "HeavyBall", "ProximalSGD"), lambda: {"params": [Parameter(torch.ones(2))]}),
    **dict.fromkeys(("ChiSquareBall", "KLBall", "WassersteinBall"), lambda: {"rho": 1.0}),
    **dict.fromkeys(("CVaRGroupDRO", "CappedSimplex"), lambda: {"alpha": 1.0}),
    **dict.fromkeys(("GlobalContrastive", "ViewContrastive", "InfoNCE"), lambda: {"tau_min": 0.004}),
    "CVaRPartialAUC": lambda: {"max_fpr": 0.5, "min_tpr": 0.5},
    "Garnet": lambda: {"branching": 2},
    "GroupAUCAtLeast": lambda: {"least": 0.8},
    "KullbackLeiblerOfLog": lambda: {"lam": 1.0, "tau": 1.0, "c": torch.tensor(1.0)},
    "LabelledImages": lambda: {"root": "."},
    "LogWithTemperature": lambda: {"tau": torch.tensor(1.0)},
    "MSVR": lambda: {"gamma_prime": 0.5},
    "MeanAtMost": lambda: {"quantity": SoftRate(), "kappa": 0.1},
    "MeanDifferenceAtMost": lambda: {"quantity": SoftRate(), "kappa": 0.1, "where_a": {"y": 1}, "where_b": {"y": 0}},
    "MeanNear": lambda: {"quantity": SoftRate(), "target": 0.1},
    "MoreauEnvelope": lambda: {"phi": Hinge(), "lam": 0.1},
    "MoreauSmoothing": lambda: {"lam": 0.1},
    "MultiTaskGroupDRO": lambda: {"num_tasks": 2, "loss": LogisticLoss(), "num_groups": 2},
    "ProximalDescent": lambda: {"params": [Parameter(torch.ones(2))], "eta": 0.1, "nu": 1.0},
    "RandomizedSmoothing": lambda: {"sigma": 0.1},
    "RatesAbove": lambda: {"thresholds": [0.0], "temperature": 1.0, "scale": RawScores()},
    "RatioDifference": lambda: {"phi": Hinge()},
    "RecallAtK": lambda: {"k": 3},
    "SONEX": lambda: {"objective_gamma": 0.5},
    "TextTokens": lambda: {"vocabulary": 100},
    "TopShare": lambda: {"share": 0.1},
}


PLACES = [
    (name, argument, rule)
    for rule, text in RANGES.items()
    for name, arguments in (part.split(".") for part in text.split())
    for argument in arguments.split(",")
]


def make(name, **changes):
    return getattr(fcco_lightning, name)(**(EXAMPLES.get(name, dict)() | changes))


def kinds_of(name):
    """The types that the arguments of a class may have."""
    hints = get_type_hints(getattr(fcco_lightning, name).__init__)
    return {argument: get_args(hint) if isinstance(hint, UnionType) else (hint,) for argument, hint in hints.items()}


def outside_and_inside(rule):
    """Numbers that a rule refuses, and some that it takes."""
    if interval := re.fullmatch(r"lie in ([\[(])0, 1([\])])", rule):
        low, high = interval[1] == "[", interval[2] == "]"
        return [-0.1, 1.1] + [0] * (not low) + [1] * (not high), [0.5] + [0.0] * low + [1.0] * high
    if rule == "be a finite number":
        return [], [1.0, 0.25]
    kind, comparison, bound = re.fullmatch(r"be a (finite|whole) number (>=?) ([\d.]+)", rule).groups()
    least = float(bound)
    if kind == "whole":
        return [least - 1, least + 0.5, True], [int(least), least]
    return ([least, least - 1], [least + 1e-9]) if comparison == ">" else ([least - 1e-9], [least])


@pytest.mark.filterwarnings("ignore:tau=0.004")
@pytest.mark.parametrize(("name", "argument", "rule"), PLACES, ids=str)
def test_numbers_outside_of_their_range_are_refused_by_name(name, argument, rule):
    outside, inside = outside_and_inside(rule)
    asked = re.sub("^(objective|row)_(?=gamma)", "", argument)  # which an inner part has
    nothing = [None] if kinds_of(name)[argument] in ((float,), (int,)) else []
    for value in [*outside, *nothing, math.nan, math.inf, -math.inf, "x"]:
        with pytest.raises(ConfigError, match=rf"\b({argument}|{asked}) must {re.escape(rule)}, got {value!r}"):
            make(name, **{argument: value})
    for value in inside:
        make(name, **{argument: value})


# Numbers with rules of another kind, such as only count beside another argument, values of data, and those of bases.
ELSEWHERE = """
    ALEXR2.objective_gamma_prime BellmanResidual.num_states CVaRPartialAUC.threshold
    CVaRPartialAUC.thresholds CVaRPartialAUC.thresholds_lr DoubleLoop.K DoubleLoop.eta DoubleLoop.nu
    DoubleLoop.recovery_steps ExponentialOf.lam GlobalContrastive.tau_lr GlobalContrastive.tau_max
    GlobalContrastive.tau_min InfoNCE.tau_min LabelSampling.missing
    MeanAveragePrecision.missing OverSides.kappa RankingEvaluation.missing
    SpectralRisk.r ViewContrastive.tau_lr ViewContrastive.tau_max
    ViewContrastive.tau_min
"""


def test_every_number_of_a_part_has_its_range():
    """Of whatever a configuration may name, but networks and data."""
    names = {name for kind in KINDS.keys() - {"networks", "data"} for name in members(kind)}
    numbers = {
        f"{name}.{argument}"
        for name in names
        for argument, kinds in kinds_of(name).items()
        if (float in kinds or int in kinds) and bool not in kinds
    }
    assert numbers - {f"{name}.{argument}" for name, argument, _ in PLACES} == set(ELSEWHERE.split())


LISTS = """
    AUCParity.groups CellSampling.columns Classes.known,protected,target,templates Columns.drop,extra
    DemographicParity.groups DigitsCLIPDataModule.protected,target Distillation.names Encoding.categorical,numeric
    EqualOpportunity.groups EqualizedOdds.groups FourFifthsRule.groups GroupAUCAtLeast.groups GroupBy.bins Groups.by
    ImageNoise.means ImageSplits.fractions NonForgetting.names PredictiveParity.groups Preemption.signals
    ROCFairness.groups,thresholds RankingEvaluation.top RetrievalEvaluation.k
"""


@pytest.mark.parametrize("value", ["seven", 7], ids=str)
@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, argument) for name, text in (p.split(".") for p in LISTS.split()) for argument in text.split(",")],
)
def test_one_value_in_the_place_of_a_list_is_refused_by_name(name, argument, value):
    """Of a text every letter was taken for a value, and a number ended in a TypeError."""
    needed = {
        "Classes": {"target": ["cat"]},
        "Columns": {"label": "y"},
        "GroupBy": {"column": "age"},
        "ImageSplits": {"by": "fractions"},
    }
    with pytest.raises(ConfigError, match=rf"{argument}\b.* must be a list, got {value!r}\. Put it in brackets"):
        make(name, **(needed.get(name, {}) | {argument: value}))


@pytest.mark.parametrize("value", ["race", 7, [("race", 1)]], ids=str)
def test_subsets_are_mappings(value):
    with pytest.raises(ConfigError, match=re.escape("`where` must be a mapping of columns to values, such as")):
        make("MeanAtMost", where=value)


@pytest.mark.parametrize("value", [None, 0, "no"], ids=str)
@pytest.mark.parametrize("name", ["ImageTransform", "Pairs", "Classes", "DigitImages"])
def test_augmentation_is_yes_no_or_arguments(name, value):
    """Whatever was not False augmented the images, None and 0 with it."""
    with pytest.raises(ConfigError, match=rf"\.augment must be True, False or a mapping .*, got {value!r}"):
        make(name, **({"target": ["cat"]} if name == "Classes" else {}), augment=value)
