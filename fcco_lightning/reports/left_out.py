"""Optional items of a report (pictures, tables, figures), which are left out if making them fails."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]

T = TypeVar("T")


class LeftOut(dict[str, str]):
    """Makes items of a report, and maps names of items that failed to the reasons.

    The items are made one by one, so that an error in one, which becomes a warning, affects neither the others nor the
    run.  Items for which several processes communicate are not made here: a process that continued after an error would
    leave the others waiting.

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
            instead: The value of an item that is left out.
        """
        try:
            return make()
        except Exception as error:
            self[item] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            rank_zero_warn(f"{item} is left out of the report: {self[item]}")
            return instead

    def make_all(self, makers: Mapping[str, Callable[[], T | None]]) -> list[T]:
        """Return the items that can be made and are not None, which stands for nothing to show."""
        results = (self.make(item, make, None) for item, make in makers.items())
        return [item for item in results if item is not None]
