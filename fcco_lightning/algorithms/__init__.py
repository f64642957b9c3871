"""The named algorithms, one per file, with the names of the papers."""

from fcco_lightning.algorithms.alexr import ALEXR
from fcco_lightning.algorithms.alexr2 import ALEXR2
from fcco_lightning.algorithms.bsgd import BSGD
from fcco_lightning.algorithms.default import default_algorithm
from fcco_lightning.algorithms.double_loop import DoubleLoop
from fcco_lightning.algorithms.estimation import Estimation, SingleLoop
from fcco_lightning.algorithms.icppac import ICPPAC
from fcco_lightning.algorithms.max_form import MaxForm
from fcco_lightning.algorithms.moap import MOAP
from fcco_lightning.algorithms.msvr import MSVR
from fcco_lightning.algorithms.ooa import OOA, SMD
from fcco_lightning.algorithms.pdsca import PDSCA
from fcco_lightning.algorithms.pg_smd import PGSMD
from fcco_lightning.algorithms.pg_svrg import PGSVRG
from fcco_lightning.algorithms.scent import SCENT
from fcco_lightning.algorithms.sgd import SGD
from fcco_lightning.algorithms.soap import SOAP
from fcco_lightning.algorithms.sonex import SONEX
from fcco_lightning.algorithms.sonx import SONX
from fcco_lightning.algorithms.sox import SOX
from fcco_lightning.algorithms.sox_boost import SOXBoost
from fcco_lightning.algorithms.stages import ConcaveStages, EqualStages, Stages, StronglyConcaveStages
from fcco_lightning.algorithms.switching import Switching
from fcco_lightning.engine import Algorithm

__all__ = [
    "ALEXR",
    "ALEXR2",
    "BSGD",
    "ICPPAC",
    "MOAP",
    "MSVR",
    "OOA",
    "PDSCA",
    "PGSMD",
    "PGSVRG",
    "SCENT",
    "SGD",
    "SMD",
    "SOAP",
    "SONEX",
    "SONX",
    "SOX",
    "Algorithm",
    "ConcaveStages",
    "DoubleLoop",
    "EqualStages",
    "Estimation",
    "MaxForm",
    "SOXBoost",
    "SingleLoop",
    "Stages",
    "StronglyConcaveStages",
    "Switching",
    "default_algorithm",
]
