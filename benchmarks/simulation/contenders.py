"""One contender in a process of its own: ``python -m benchmarks.simulation.contenders NAME``; prints a line of JSON.

Every contender runs the same local training of the same clients on the same model, over the in-process grid, so
that what differs is what surrounds it.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import time
from collections.abc import Callable
from typing import Any, Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.output import quiet
from benchmarks.simulation.setting import CLIP, COHORT, NOISE_MULTIPLIER, make_settings
from fedpriv.clients import client_level_dp_mod
from fedpriv.mechanisms import FixedSizeCohort
from fedpriv.plans import DpsgdDcPlan
from fedpriv.settings import Settings
from fedpriv.strategies import DpsgdDc, NoisedSum
from fedpriv.tasks import federated, get_task
from fedpriv.testing import LocalGrid


def client_app(settings: Settings, private: bool) -> ClientApp:
    """The train function of an ordinary app, with our mod on it or without."""
    app, local = ClientApp(), federated.local_training(settings)

    @app.train(mods=[client_level_dp_mod] if private else [])
    def train(msg: Message, context: Context) -> Message:
        arrays = {name: array.numpy() for name, array in msg.content["arrays"].items()}  # type: ignore[union-attr]
        server_round = int(msg.content["config"]["server-round"])  # type: ignore[index, arg-type, call-overload]
        partition = int(context.node_config["partition-id"])
        found = federated.train_locally(settings, partition, arrays, local, server_round)
        content = RecordDict(
            {
                "arrays": ArrayRecord({name: Array(value) for name, value in found.items()}),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        return Message(content, reply_to=msg)

    return app


def initial(settings: Settings) -> ArrayRecord:
    """The model that every contender starts from."""
    model = get_task(settings.run.task).build_model(settings.run.model, settings.run.seed)
    return ArrayRecord({name: Array(value.detach().numpy()) for name, value in model.state_dict().items()})


Round = Callable[[int, ArrayRecord], ArrayRecord]


def flower(settings: Settings) -> Round:
    """Flower's own FedAvg."""
    grid = LocalGrid(client_app(settings, private=False), settings.run.num_clients)
    strategy = FedAvg(
        fraction_train=COHORT / settings.run.num_clients, fraction_evaluate=0.0, min_train_nodes=COHORT
    )

    def play(server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
        found, _ = strategy.aggregate_train(server_round, grid.send_and_receive(messages))
        assert found is not None
        return found

    return play


def fedpriv(
    settings: Settings, kind: Literal["central", "distributed"], mode: Literal["protocol", "simulated"]
) -> Round:
    """Our client-level DP."""
    length = sum(array.numpy().size for array in initial(settings).values())
    plan = DpsgdDcPlan.build(
        sampler=FixedSizeCohort(COHORT),
        clipping_norm=CLIP,
        noise_multiplier=NOISE_MULTIPLIER,
        kind=kind,
        adjacency="replace_one",
        num_clients=settings.run.num_clients,
        min_survivors=COHORT - 1,
        rounds=1000,
        length=length,
    )
    grid = LocalGrid(client_app(settings, private=True), settings.run.num_clients)
    strategy = DpsgdDc(plan, NoisedSum(None, mode=mode))

    def play(server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        found = strategy.train_round(grid, server_round, arrays).arrays
        assert found is not None
        return found

    return play


CONTENDERS: dict[str, Callable[[Settings], Round]] = {
    "Flower FedAvg, no privacy": flower,
    "fedpriv, central noise, simulated sum": lambda settings: fedpriv(settings, "central", "simulated"),
    "fedpriv, distributed noise, simulated sum": lambda settings: fedpriv(
        settings, "distributed", "simulated"
    ),
    "fedpriv, distributed noise, real secure sum": lambda settings: fedpriv(
        settings, "distributed", "protocol"
    ),
}


def measure(name: str, rounds: int, settings: Settings) -> dict[str, Any]:
    """CPU seconds of every round after a first one, and the peak memory of this process in MiB.

    CPU time, since wall time on shared cores says more about the neighbours; one thread does all the work.
    """
    play, arrays = CONTENDERS[name](settings), initial(settings)
    arrays = play(1, arrays)
    seconds = []
    for server_round in range(2, rounds + 2):
        began = time.process_time()
        arrays = play(server_round, arrays)
        seconds.append(time.process_time() - began)
    return {"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def places(name: str, rounds: int, settings: Settings) -> dict[str, float]:
    """Part of the time by place, from a profile of some rounds."""
    play, arrays = CONTENDERS[name](settings), initial(settings)
    arrays = play(1, arrays)
    profile = cProfile.Profile(time.process_time)
    profile.enable()
    for server_round in range(2, rounds + 2):
        arrays = play(server_round, arrays)
    profile.disable()
    stats = pstats.Stats(profile)
    whole = stats.total_tt  # type: ignore[attr-defined]
    return {"whole": whole, **_places(stats)}


def _places(stats: pstats.Stats) -> dict[str, float]:
    def cumulative(file: str, function: str) -> float:
        return sum(
            entry[3]
            for (path, _, name), entry in stats.stats.items()  # type: ignore[attr-defined]
            if path.endswith(file) and name == function
        )

    training = cumulative("tasks/federated.py", "train_locally")
    client = cumulative("flwr/clientapp/client_app.py", "__call__")
    wire = cumulative("testing/local_grid.py", "_over_the_wire")
    return {"local training": training, "clients, beside it": client - training, "messages": wire}


def main() -> None:
    """Measure one contender."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    quiet()
    settings = make_settings()
    found = (places if options.profile else measure)(options.name, options.rounds, settings)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
