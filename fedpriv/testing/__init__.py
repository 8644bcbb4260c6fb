"""Run a Flower app in one process: :class:`LocalGrid` and :func:`run_local`."""

from fedpriv.testing.local_grid import LocalGrid, run_local

__all__ = ["LocalGrid", "run_local"]
