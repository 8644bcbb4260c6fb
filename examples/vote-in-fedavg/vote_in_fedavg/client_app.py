"""Client of the FedAvg app. New for the vote: `loss_of` and the mod; training is what it was before."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpriv.clients import dp_hype_mod
from vote_in_fedavg import task

LOCAL_STEPS = 10

app = ClientApp()


def loss_of(candidate: dict[str, Any], context: Context) -> float:
    """Loss on this client's validation part after a short training of its own; never leaves the client."""
    training, validation = task.client_examples(context.node_config)
    model = task.new_model()
    task.train(model, training, float(candidate["learning-rate"]), LOCAL_STEPS)
    return task.evaluate(model, validation)[0]


@app.train(mods=[dp_hype_mod(loss_of)])
def train(msg: Message, context: Context) -> Message:
    """Ordinary FedAvg training: the vote's messages never come here."""
    training, _ = task.client_examples(context.node_config)
    model = task.model_from(msg.content.array_records["arrays"])
    rate = float(str(msg.content.config_records["config"]["learning-rate"]))
    task.train(model, training, rate, LOCAL_STEPS)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(training[1])}),
        }
    )
    return Message(content, reply_to=msg)
