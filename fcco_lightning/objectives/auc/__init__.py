"""AUC, partial AUC, and the losses of pairs that they are made of."""
