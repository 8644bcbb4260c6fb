"""What a client does to judge a candidate of the vote, by the stage that the vote tunes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpriv.settings import Settings

#: Stage -> module and function of (settings with the candidate's values, client's data) -> loss. The loss stays
#: on the client.
TRIALS: dict[str, str] = {
    "train": "fedpriv.tasks.federated:train_trial",
    "zeroth-order": "fedpriv.tasks.zeroth_order:zeroth_order_trial",
    "paczero": "fedpriv.tasks.zeroth_order:sign_trial",
    "matrix": "fedpriv.tasks.matrix:matrix_trial",
}


def find_trial(stage: str) -> Callable[[Settings, int | str], float]:
    """The trial of a stage.

    Raises
    ------
    ValueError
        For a stage that no vote can tune.
    """
    if stage not in TRIALS:
        raise ValueError(f"stage must be one of {', '.join(TRIALS)} for a vote to tune it, got {stage!r}")
    module, function = TRIALS[stage].split(":")
    found: Callable[[Settings, int | str], float] = getattr(importlib.import_module(module), function)
    return found
