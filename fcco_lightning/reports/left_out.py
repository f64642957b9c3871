"""What no report needs to exist: its pictures, tables and figures, of which one that cannot be made is left out."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]

T = TypeVar("T")


class LeftOut(dict[str, str]):
    """Why items of a report were left out, by the names of the items.

    The items are made here, one by one, so that an error of one does not take the others, or the run, along.  The
    error becomes a warning.  An item for which several processes exchange something is not made here: a process that
    went on alone would leave the others waiting.

    Example:
        >>> import warnings
        >>> left_out = LeftOut()
        >>> with warnings.catch_warnings(action="ignore"):
        ...     [left_out.make("a mean", lambda: 4 / 2, None), left_out.make("a ratio", lambda: 4 / 0, None)]
        [2.0, None]
        >>> dict(left_out)
        {'a ratio': 'ZeroDivisionError: division by zero'}
    """

    def make(self, item: str, make: Callable[[], T], instead: T) -> T:
        """Return what ``make()`` returns, or ``instead`` if it raises.

        Args:
            item: The name of the item.
            make: A function that makes it.
            instead: What stands for an item that is left out.
        """
        try:
            return make()
        except Exception as error:
            self[item] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            rank_zero_warn(f"{item} is left out of the report: {self[item]}")
            return instead

    def make_all(self, makers: Mapping[str, Callable[[], T | None]]) -> list[T]:
        """Return those of several items that can be made, without those that are None as they have nothing to show."""
        results = (self.make(item, make, None) for item, make in makers.items())
        return [item for item in results if item is not None]
