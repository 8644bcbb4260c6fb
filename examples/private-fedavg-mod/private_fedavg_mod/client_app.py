"""Client of the FedAvg app. New for privacy: one import and the mod on `train`."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpriv.clients import client_level_dp_mod
from private_fedavg_mod import task

LOCAL_STEPS = 5
LEARNING_RATE = 1.0

app = ClientApp()


@app.train(mods=[client_level_dp_mod])
def train(msg: Message, context: Context) -> Message:
    """Ordinary training. The mod clips, noises and masks the change of the arrays and drops the metrics."""
    examples = task.client_examples(context.node_config)[0]
    model = task.model_from(msg.content.array_records["arrays"])
    task.train(model, examples, LEARNING_RATE, LOCAL_STEPS)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(examples[1])}),
        }
    )
    return Message(content, reply_to=msg)
