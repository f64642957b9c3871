"""Counters of a checkpoint, in all forms in which Lightning saves them."""

import copy

import pytest

from fcco_lightning.training.resuming.progress import Position, read_position, write_position


def count(ready, started, processed, completed):
    return {"ready": ready, "started": started, "processed": processed, "completed": completed}


def counters(epochs, batches, last, given, evaluated=(0, 0, 0, 0)):
    """Of a fit loop with epochs of 10 batches; ``epochs`` and ``batches``: ready, started, processed, completed."""
    total = [n + 10 * (epochs[0] - 1) for n in batches]
    steps = {"ready": 9, "completed": 9}
    return {
        "state_dict": {"combined_loader": [{"epoch": epochs[0] - 1, "given": given, "batch_size": 4}]},
        "epoch_progress": {"total": count(*epochs), "current": count(*epochs)},
        "epoch_loop.batch_progress": {"total": count(*total), "current": count(*batches), "is_last_batch": last},
        "epoch_loop.manual_optimization.optim_step_progress": {"total": dict(steps), "current": dict(steps)},
        "epoch_loop.val_loop.batch_progress": {
            "total": count(*evaluated), "current": count(*evaluated), "is_last_batch": False,
        },
    }  # fmt: skip


FORMS = {
    "after a batch": (((3, 3, 2, 2), (4, 4, 4, 3), False, 4), Position(2, 4, False, True), (2, 4)),
    "before a batch, which was fetched": (((3, 3, 2, 2), (5, 4, 4, 4), False, 5), Position(2, 4), (2, 4)),
    "before the first batch": (((3, 3, 2, 2), (1, 0, 0, 0), False, 1), Position(2), (2, 0)),
    "after the last batch": (((3, 3, 2, 2), (10, 10, 10, 9), True, 10), Position(2, 10, True, True), (2, 10)),
    "before the last batch": (((3, 3, 2, 2), (10, 9, 9, 9), True, 10), Position(2, 9), (2, 9)),
    "in validation": (
        ((3, 3, 2, 2), (10, 10, 10, 10), True, 10, (3, 3, 2, 2)), Position(2, 10, True, True), (2, 10),
    ),
    "after validation": (((3, 3, 2, 2), (10, 10, 10, 10), True, 10, (3, 3, 3, 3)), Position(2, 10, True), (2, 10)),
    "at the end of an epoch": (((3, 3, 3, 2), (10, 10, 10, 10), True, 10), Position(3), (3, 0)),
    "after an epoch": (((3, 3, 3, 3), (10, 10, 10, 10), True, 10), Position(3), (3, 0)),
    "an epoch cut short": (((3, 3, 3, 3), (4, 4, 4, 4), False, 4), Position(2, 4), (2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_position_and_back(form):
    """What is written means the same, twice; epochs that are open have one more begun than finished."""
    taken, position, loader = FORMS[form]
    state = counters(*taken)
    assert read_position(state) == position
    write_position(state, position)
    assert read_position(state) == position
    again = copy.deepcopy(state)
    write_position(again, read_position(again))
    assert again == state
    found = state["state_dict"]["combined_loader"][0]
    assert (found["epoch"], found["given"]) == loader
    epochs = state["epoch_progress"]["current"]
    assert (epochs["started"], epochs["completed"]) == (position.epoch + (position.batches > 0), position.epoch)


def test_an_epoch_that_the_module_has_not_closed_stays_open():
    taken, *_ = FORMS["at the end of an epoch"]
    assert read_position(counters(*taken), validated=True, closed=False) == Position(2, 10, True)


def test_what_is_known_of_validation_counts():
    taken, position, _ = FORMS["after a batch"]
    assert position.validate
    assert not read_position(counters(*taken), validated=True).validate
