"""The LightningModule, and its backends, callbacks, schedules and checkpoints for Lightning and Fabric."""

from fcco_lightning.training.averaging import WeightAverage
from fcco_lightning.training.backend import Clipping, FabricBackend, LightningBackend
from fcco_lightning.training.checkpoints import Checkpoints
from fcco_lightning.training.execution import Execution
from fcco_lightning.training.module import FCCOModule
from fcco_lightning.training.preemption import Preemption
from fcco_lightning.training.pretraining import Pretraining
from fcco_lightning.training.schedules import LinearWarmUp, Schedule, StepAtFractions
from fcco_lightning.training.warm_start import WarmStart

__all__ = [
    "Checkpoints",
    "Clipping",
    "Execution",
    "FCCOModule",
    "FabricBackend",
    "LightningBackend",
    "LinearWarmUp",
    "Preemption",
    "Pretraining",
    "Schedule",
    "StepAtFractions",
    "WarmStart",
    "WeightAverage",
]
