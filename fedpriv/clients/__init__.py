"""Client halves: mods that an engineer adds to any ClientApp's ``@app.train()`` function.

>>> from flwr.clientapp import ClientApp
>>> from fedpriv.clients import client_level_dp_mod, dp_hype_mod
>>> app = ClientApp()
>>> @app.train(mods=[dp_hype_mod(lambda candidate, context: 0.0), client_level_dp_mod])
... def train(msg, context):
...     ...  # any function that returns an ArrayRecord

Order: votes and evaluations first, ``client_level_dp_mod`` last; each mod answers the messages of its own
purpose and passes the others on, and the last one lets nothing through in the clear.
"""

from fedpriv.clients.pac_zero import pac_zero_mod
from fedpriv.clients.private_evaluation import private_evaluation_mod
from fedpriv.clients.private_update import client_level_dp_mod
from fedpriv.clients.record_level import record_level_mod
from fedpriv.clients.record_zeroth_order import record_zeroth_order_mod
from fedpriv.clients.vote import dp_hype_mod
from fedpriv.clients.zeroth_order import zeroth_order_mod

__all__ = [
    "client_level_dp_mod",
    "dp_hype_mod",
    "pac_zero_mod",
    "private_evaluation_mod",
    "record_level_mod",
    "record_zeroth_order_mod",
    "zeroth_order_mod",
]
