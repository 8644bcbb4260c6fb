"""Client of the app; nothing is new here, since Flower's strategy clips and adds noise on the server."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from accountant_for_flower import task

LOCAL_STEPS = 5
LEARNING_RATE = 1.0

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Ordinary training."""
    examples = task.client_examples(context.node_config)[0]
    model = task.model_from(msg.content.array_records["arrays"])
    task.train(model, examples, LEARNING_RATE, LOCAL_STEPS)
    # Flower's accounting needs the same weight for every client: no number of examples.
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
    )
    return Message(content, reply_to=msg)
