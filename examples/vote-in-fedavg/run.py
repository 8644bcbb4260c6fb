"""Run the app in this process, without Ray and without a SuperLink: python examples/vote-in-fedavg/run.py"""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Any

import torch

from fedpriv.testing import run_local
from vote_in_fedavg.client_app import app as client_app
from vote_in_fedavg.server_app import app as server_app


def main(**changes: Any) -> None:
    """Run with the configuration of pyproject.toml and the given changes."""
    torch.set_num_threads(1)  # threads only slow down a model this small
    project = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8"))
    config = project["tool"]["flwr"]["app"]["config"] | changes
    run_local(server_app, client_app, config["num-clients"], config)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("== before: the app's own learning rate")
    main(vote=False)
    print("== with the vote")
    main()
