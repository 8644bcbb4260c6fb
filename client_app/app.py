"""ClientApp: the task plugged into the private client halves. Holds no algorithm.

torch and the task are imported inside the functions: a message that only exchanges keys must start fast.
"""

import functools
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpriv import clients

app = ClientApp()


@functools.lru_cache(maxsize=4)
def _settings(items: tuple[tuple[str, Any], ...]) -> Any:
    from fedpriv.settings import resolve_settings

    return resolve_settings(dict(items))


def _place(context: Context) -> tuple[Any, Any]:
    """Settings of the run and where the client's data is: its own file, or its part of the built-in data."""
    from fedpriv.tasks.silo_data import data_place

    return _settings(tuple(sorted(context.run_config.items()))), data_place(context.node_config)


def candidate_loss(candidate: dict[str, Any], context: Context) -> float:
    """Loss of a candidate on this client's data; stays here."""
    from fedpriv.tasks import federated

    settings, partition = _place(context)
    return federated.candidate_loss(settings, partition, candidate)


def count_correct(arrays: ArrayRecord, context: Context) -> tuple[int, int]:
    """Correct predictions and examples of this client's validation part; noised and masked before they leave."""
    from fedpriv.tasks import federated

    settings, partition = _place(context)
    found = federated.count_correct(settings, partition, {name: a.numpy() for name, a in arrays.items()})
    return round(found.accuracy * found.num_examples) if found.num_examples else 0, found.num_examples


def objective(arrays: dict[str, Any], context: Context) -> Any:
    """Losses of this client's records, for two-point quotients; stay here."""
    from fedpriv.tasks.zeroth_order import client_objective

    settings, partition = _place(context)
    return client_objective(settings, partition, arrays)


def initial(context: Context) -> Any:
    """The model that the run starts from, built here instead of received."""
    from fedpriv.tasks.zeroth_order import initial_arrays

    return initial_arrays(_place(context)[0])


def gradients(arrays: dict[str, Any], context: Context) -> Any:
    """Gradients of this silo's records, clipped and noised before anything is computed from them; stay here."""
    from fedpriv.tasks.record_training import record_gradients

    return record_gradients(*_place(context), arrays)


@app.train(
    mods=[
        clients.dp_hype_mod(candidate_loss),
        clients.private_evaluation_mod(count_correct),
        clients.zeroth_order_mod(objective, initial),
        clients.pac_zero_mod(objective),
        clients.record_level_mod(gradients),
        clients.record_zeroth_order_mod(objective, initial),
        clients.client_level_dp_mod,
    ]
)
def train(msg: Message, context: Context) -> Message:
    """Ordinary local training; the mods make what leaves private."""
    from fedpriv.tasks import federated
    from fedpriv.tasks.training import LocalTraining

    settings, partition = _place(context)
    config: dict[str, Any] = dict(msg.content.config_records["config"])
    local = LocalTraining(
        learning_rate=float(config["learning-rate"]),
        local_steps=int(config["local-steps"]),
        momentum=float(config["momentum"]),
        batch_size=int(config["batch-size"]) or None,
    )
    received = {name: array.numpy() for name, array in msg.content.array_records["arrays"].items()}
    trained = federated.train_locally(settings, partition, received, local, int(config["server-round"]))
    arrays = ArrayRecord({name: Array(value) for name, value in trained.items()})
    return Message(RecordDict({"arrays": arrays}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Metrics in the clear, only for a run that says ``evaluate = "clear"``."""
    from fedpriv.tasks import federated

    settings, partition = _place(context)
    if settings.run.evaluate != "clear":
        raise PermissionError("metrics in the clear need evaluate = 'clear' in the run config")
    received = {name: array.numpy() for name, array in msg.content.array_records["arrays"].items()}
    found = federated.count_correct(settings, partition, received)
    accuracy = found.accuracy if found.num_examples else 0.0
    metrics = MetricRecord({"accuracy": float(accuracy), "num-examples": found.num_examples})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
