"""The ranking objectives and other X-risks: what a step costs, and what they reach beside plain losses and LibAUC.

One or several parts, each a table and a JSON file below ``--out``::

    uv run python examples/benchmarks/xrisk.py --part cost scores
    uv run python examples/benchmarks/xrisk.py --part push --train adult_train.csv --test adult_test.csv
    uv run python examples/benchmarks/xrisk.py --part survival --train patients.csv --time months --event died
    uv run python examples/benchmarks/xrisk.py --part ranking --train lists.letor

========== ======================================================================== ============= =====================
part       compares                                                                 needs         on a free core, about
========== ======================================================================== ============= =====================
cost       a step with cross-entropy's and LibAUC's, and dispatched operators       --            1 minute
scores     training with five positives, 5 seeds, with losses of single samples,    --            12 minutes
           gradient boosting and LibAUC
push       SOX, MOAP, SOAP and BSGD on the p-norm push                              (two tables)  5 minutes
neighbours neighbourhood components with scikit-learn's                             --            4 minutes
survival   Cox's model from batches of 4, 16 and 64 with its exact optimum          (a table)     8 minutes
ranking    ListNet and NDCG with LambdaMART                                         (a table)     2 minutes
========== ======================================================================== ============= =====================

The times are estimates.

What stands in brackets (``--train``, ``--test``) has an embedded replacement.  LibAUC and LightGBM are no dependencies;
their rows are left out where they are not installed (``uv pip install --no-deps libauc==2.0.1 tqdm``, ``uv pip install
lightgbm``), and scikit-learn's boosting takes LightGBM's place in ``scores``.

``cost`` measures the processor's time, which leaves out what other programs take.  Runs of ``scores`` last a second, so
they drive the engine in a loop; those of all further parts go through ``fcco fit`` and the configs.  Learning rates are
searched from three values on, until the pick is not on an edge, with three seeds of their own (``--tuning-seeds`` from
``push`` on) and without the test split.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

PARTS = ("cost", "scores", "push", "neighbours", "survival", "ranking")


def cost(given: argparse.Namespace) -> None:
    """Print and keep the tables."""
    import timing
    import xrisk_cost

    timing.report(xrisk_cost.cost(given.rounds, compiled=given.compiled), given.out / "xrisk_cost.json")


def scores(given: argparse.Namespace) -> None:
    """Search, run, print and keep."""
    import xrisk_scores

    picks, results = xrisk_scores.scores(given.seeds, given.jobs)
    keep(given, "scores", picks, results)


def fits(given: argparse.Namespace, part: str) -> None:
    """Search, run, print and keep what goes through ``fcco fit``."""
    import xrisk_fits

    keep(given, part, *xrisk_fits.compare(part, given))


def keep(given: argparse.Namespace, part: str, picks: dict[str, Any], results: list[Any]) -> None:
    """Write the JSON file."""
    path = given.out / f"xrisk_{part}.json"
    path.write_text(json.dumps({"picks": picks, "runs": results}, indent=1, default=str))  # paths of tables
    print(f"\n{path}", flush=True)


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, required=True)
    parser.add_argument("--train", help="table of push, survival or ranking; an embedded one by default")
    parser.add_argument("--test", help="test table of push")
    parser.add_argument("--label", default="income", help="push: column of the label")
    parser.add_argument("--positive", default=">50K", help="push: its positive value")
    parser.add_argument("--time", default="time", help="survival: column of the times")
    parser.add_argument("--event", default="event", help="survival: column of the events, 0 or 1")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tuning-seeds", type=int, default=1, choices=[1, 2, 3], help="of the parts from push on")
    parser.add_argument("--rounds", type=int, default=60, help="of cost, of ten steps each")
    parser.add_argument("--compiled", action="store_true", help="cost: also by torch.compile (needs a C++ compiler)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    given = parser.parse_args()
    if "push" in given.part and (given.train is None) != (given.test is None):
        parser.error("push takes --train and --test, or neither.")
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    own = {"cost": cost, "scores": scores}
    for part in given.part:
        own[part](given) if part in own else fits(given, part)


if __name__ == "__main__":
    main()
