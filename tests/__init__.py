"""Tests of the package.

A folder tests the folder of ``fcco_lightning`` with the same name.  Besides these there are

* ``contracts/``: properties of every algorithm, estimator, objective, constraint, ambiguity set, batch plan, evaluation
  and data module.  ``registry_*.py`` list the classes, most of them with their formula written a second time; a public
  class that is in no registry fails ``contracts/test_completeness.py``, so a new class needs an entry there first.
* ``outer/cases/``: such a registry of outer functions.
* ``reference/``: a second implementation of algorithms in NumPy, and comparisons with it step by step.
* ``training/``: runs under a Trainer: resuming, several processes, precisions, callbacks, failures.
* the test modules in this folder: the repository as a whole (architecture, configurations, guides, benchmarks).

Modules without ``test_`` are helpers, described by their docstrings.  The most used are ``conftest.py`` (fixtures for
all tests), ``tables.py``, ``texts.py`` and ``images.py`` (small data), ``plans.py`` and ``components.py`` (batch plans
and data modules), ``combinations.py`` (parameters of tests), and ``launch.py`` with ``jobs.py`` (several processes).
``mutation.py``, ``simplicity.py`` and ``inventory.py`` are also programs.
"""
