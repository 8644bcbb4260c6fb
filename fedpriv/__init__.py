"""Federated learning on Flower, with privacy that can be proven.

Import what you need from the sub-packages: ``fedpriv.accounting`` (the mathematics, usable without Flower),
``fedpriv.strategies`` (server halves), ``fedpriv.clients`` (client halves), ``fedpriv.testing`` (an in-process
Grid). Nothing heavy is imported here, because every message to a client may start a fresh process.
"""

__version__ = "0.1.0"
