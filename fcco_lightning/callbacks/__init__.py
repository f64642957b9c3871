"""What happens around training: reports and pictures."""

from fcco_lightning.callbacks.report import Report

__all__ = ["Report"]
