"""What our Flower strategies share: no message of their own, the exchanges run inside configure_train."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class SumStrategy(Strategy):
    """A Flower strategy whose round is a secure sum.

    Flower's loop makes one exchange per phase; a secure sum needs several. So it runs inside
    ``configure_train``, which has the grid and returns no message, and ``aggregate_train`` hands the result
    back. Clients' metrics in the clear do not exist, hence no federated evaluation phase.
    """

    def __init__(self) -> None:
        self._arrays: ArrayRecord | None = None
        self._metrics: MetricRecord | None = None

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return what ``configure_train`` found (``replies`` is empty)."""
        arrays, metrics = self._arrays, self._metrics
        self._arrays = self._metrics = None
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send nothing: an evaluation in the clear would be an unaccounted release."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing, see ``configure_evaluate``."""
        return None
