"""The ranking objectives and other X-risks: what a step costs, and what they reach beside plain losses and LibAUC.

One or several parts, each a table and a JSON file below ``--out``::

    uv run python examples/benchmarks/xrisk.py --part cost scores

========== ======================================================================== =====================
part       compares                                                                 on a free core, about
========== ======================================================================== =====================
cost       a step with cross-entropy's and LibAUC's, and dispatched operators       1 minute
scores     training with five positives, 5 seeds, with losses of single samples,    12 minutes
           gradient boosting and LibAUC
push       SOX, MOAP, SOAP and BSGD on the p-norm push                              5 minutes
neighbours neighbourhood components with scikit-learn's                             4 minutes
survival   Cox's model from batches of 4, 16 and 64 with its exact optimum          8 minutes
ranking    ListNet and NDCG with LambdaMART                                         2 minutes
========== ======================================================================== =====================

The times are estimates.

LibAUC and LightGBM are no dependencies; their rows are left out where they are not installed (``uv pip install
--no-deps libauc==2.0.1 tqdm``, ``uv pip install lightgbm``), and scikit-learn's boosting takes LightGBM's place in
``scores``.

``cost`` measures the processor's time, which leaves out what other programs take.  Runs of ``scores`` last a second, so
they drive the engine in a loop; those of all further parts go through ``fcco fit`` and the configs.  Learning rates are
searched from three values on, until the pick is not on an edge, with three seeds of their own (``--tuning-seeds`` from
``push`` on) and without the test split.
"""

import argparse
import json
from typing import Any

import torch
import xrisk_cost
import xrisk_fits
import xrisk_scores
from runs import arguments
from timing import report

PARTS = ("cost", "scores", *xrisk_fits.COMPARISONS)


def carry_out(part: str, given: argparse.Namespace) -> None:
    """Search, run, print and keep a part."""
    path = given.out / f"xrisk_{part}.json"
    if part == "cost":
        report(xrisk_cost.cost(given.rounds, compiled=given.compiled), path)
        return
    picks: dict[str, Any]
    if part == "scores":
        picks, results = xrisk_scores.scores(given.seeds, given.jobs)
    else:  # through fcco fit
        picks, results = xrisk_fits.compare(part, given)
    path.write_text(json.dumps({"picks": picks, "runs": results}, indent=1, default=str))  # paths of tables
    print(f"\n{path}", flush=True)


def main() -> None:
    """Parse the arguments and run."""
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, required=True)
    parser.add_argument("--tuning-seeds", type=int, default=1, choices=[1, 2, 3], help="of the parts from push on")
    parser.add_argument("--rounds", type=int, default=60, help="of cost, of ten steps each")
    parser.add_argument("--compiled", action="store_true", help="cost: also by torch.compile (needs a C++ compiler)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    for part in given.part:
        carry_out(part, given)


if __name__ == "__main__":
    main()
