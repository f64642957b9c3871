"""What the processes of one job tell each other."""

from fcco_lightning.distributed.processes import Gathered, Processes, require_same_everywhere

__all__ = ["Gathered", "Processes", "require_same_everywhere"]
