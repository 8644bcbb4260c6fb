"""Server half of record-level training: average of models that are private before they are summed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument, check_positive
from fedpriv.ledger import Budget
from fedpriv.mechanisms import ArrayLayout, Ball
from fedpriv.plans import RecordLevelPlan
from fedpriv.strategies.base import TrainingStrategy
from fedpriv.strategies.noised_sum import NoisedSum
from fedpriv.strategies.silo_sums import AverageOutcome, SiloCheck, SiloSums


class FederatedAverage(TrainingStrategy):
    """Federated averaging of models that silos train under record-level privacy.

    The client half is :func:`fedpriv.clients.record_level_mod`. Models travel through the secure sum on a grid;
    no noise is added there, because each is private for every record of its silo already.

    Parameters
    ----------
    plan : RecordLevelPlan
        Steps inside a silo, ball, grid.
    sums : NoisedSum
        Ledger (of unit ``record``) and secure-sum settings.
    learning_rate : float
        Of the silos' steps.
    center : ArrayRecord, optional
        Centre of the ball; the origin by default.
    run : str
        Name under which silos write the run into their accounts.
    budget : Budget, optional
        The run's limit, which silos hold too; each silo may have a smaller one of its own.
    simulation_folder : str
        Where simulated silos, which have no disk of their own, keep their accounts.
    seed : int or None
        Seed of batches and noise; only for simulations that are declared not private.
    stage : str
        Name under which ledger and accounts charge the rounds.
    """

    def __init__(
        self,
        plan: RecordLevelPlan,
        sums: NoisedSum,
        *,
        learning_rate: float,
        center: ArrayRecord | None = None,
        run: str = "run",
        budget: Budget | None = None,
        simulation_folder: str = "",
        seed: int | None = None,
        stage: str = "train",
    ) -> None:
        super().__init__(plan)
        check_positive(learning_rate=learning_rate)
        self.plan, self.sums, self.center = plan, sums, center
        self.silos = SiloSums(
            plan,
            sums,
            purpose=wire.PURPOSE_RECORD_LEVEL,
            stage=stage,
            learning_rate=learning_rate,
            run=run,
            budget=budget,
            simulation_folder=simulation_folder,
            seed=seed,
        )

    def check_silos(self, grid: Grid, arrays: ArrayRecord, clients: Sequence[int] | None = None) -> SiloCheck:
        """Ask every silo, in one exchange, whether its data, account and limits allow the run.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        arrays : ArrayRecord
            The model, for the silos' function.
        clients : sequence of int, optional
            The federation; all nodes that are online by default.
        """
        nodes = sorted(grid.get_node_ids()) if clients is None else list(clients)
        return self.silos.check(grid, self._payload(arrays, 0), nodes)

    def train_round(
        self,
        grid: Grid,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord | None = None,
        clients: Sequence[int] | None = None,
    ) -> AverageOutcome:
        """Run one round and return the new model.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        server_round : int
            Starting from 1.
        arrays : ArrayRecord
            The current model.
        config : ConfigRecord, optional
            Not used: silos are told all they need by the plan.
        clients : sequence of int, optional
            The federation; all nodes that are online by default.

        Raises
        ------
        BudgetExceeded
            When the ledger's budget does not cover the round, or no silo trained in the last one; nothing was
            sent.
        InvalidArgument
            When the model or the federation does not go with the plan; nothing was sent.
        """
        plan, nodes = self.plan, sorted(grid.get_node_ids()) if clients is None else list(clients)
        layout = ArrayLayout.of({name: array.numpy() for name, array in arrays.items()})
        if layout.size != plan.length:
            raise InvalidArgument(f"arrays: {layout.size} coordinates, the plan was made for {plan.length}")
        outcome, offset, _ = self.silos.release(
            grid, nodes, self._payload(arrays, server_round), server_round
        )
        if offset is None:
            # nobody trained: the model stays; a sum that cannot be read leaves none
            return dataclasses.replace(outcome, arrays=arrays) if outcome.note else outcome
        center = self._center(layout)
        model = Ball(plan.grid.radius, center).project(offset + center)
        released = {name: Array(value) for name, value in layout.unflatten(model).items()}
        return dataclasses.replace(outcome, arrays=ArrayRecord(released))

    def _center(self, layout: ArrayLayout) -> np.ndarray:
        if self.center is None:
            return np.zeros(layout.size)
        return layout.flatten({name: array.numpy() for name, array in self.center.items()})

    def _payload(self, arrays: ArrayRecord, server_round: int) -> RecordDict:
        content = RecordDict({"arrays": arrays, wire.RECORD_RECORD_LEVEL: self.silos.record(server_round)})
        if self.center is not None:
            content["center"] = self.center
        return content
