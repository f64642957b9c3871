"""Survival, Bellman residuals, latent variables, robust logistic regression."""
