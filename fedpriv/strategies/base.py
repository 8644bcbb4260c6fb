"""What our Flower strategies share: no message of their own, the exchanges run inside configure_train."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.ledger import BudgetExceeded

if TYPE_CHECKING:
    from fedpriv.plans import AnyPlan
    from fedpriv.strategies.dpsgd_dc import RoundOutcome

logger = logging.getLogger(__name__)


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


class TrainingStrategy(SumStrategy):
    """A `SumStrategy` of planned rounds that change a model, in Flower's loop.

    Parameters
    ----------
    plan : AnyPlan
        How many rounds there are.

    Attributes
    ----------
    stopped : str or None
        Why training stopped before its last round (the budget, or the planned rounds), if it did. The model
        that was reached stays.
    """

    def __init__(self, plan: AnyPlan) -> None:
        super().__init__()
        self._planned = plan
        self.stopped: str | None = None

    @abstractmethod
    def train_round(
        self, grid: Grid, server_round: int, arrays: ArrayRecord, config: ConfigRecord | None = None
    ) -> RoundOutcome:
        """Run one round and return the new model."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Run the round's exchanges; after the budget or the planned rounds are used up, keep the model."""
        self._arrays = arrays
        if self.stopped is None and server_round > self._planned.num_rounds:
            self._stop(server_round, f"the noise was made for {self._planned.num_rounds} rounds")
        if self.stopped is not None:
            return []
        try:
            outcome = self.train_round(grid, server_round, arrays, config)
        except BudgetExceeded as exceeded:
            self._stop(server_round, str(exceeded))
            return []
        except InvalidArgument as misfit:
            if server_round == 1:
                raise
            # the federation has changed under the plan; an exception here would lose the model
            self._stop(server_round, str(misfit))
            return []
        if outcome.arrays is not None:
            self._arrays = outcome.arrays
        self._metrics = MetricRecord({"survivors": outcome.survivors, "asked": outcome.asked})
        return []

    def _stop(self, server_round: int, why: str) -> None:
        self.stopped = why
        logger.warning("training stops before round %d: %s", server_round, why)

    def summary(self) -> None:
        """Log the plan."""
        for name, value in self._planned.describe().items():
            logger.info("\t%s: %s", name, value)
