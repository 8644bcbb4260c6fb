"""Tasks: a data set, honest small models, a loss and a metric, and how the data is spread over clients.

Importing this package costs nothing: neither torch nor a data set is touched before :func:`get_task` or one
of the modules below is used, so a client process that only handles a key exchange stays fast.

* :mod:`fedpriv.tasks.base`: what a task is (:class:`~fedpriv.tasks.base.Task`) and its examples.
* :mod:`fedpriv.tasks.models`: logistic regression with a known smoothness, a GroupNorm CNN, an MLP.
* :mod:`fedpriv.tasks.partitions`: IID and Dirichlet partitions, and a picture of them.
* :mod:`fedpriv.tasks.client_data`: one client's training and validation examples.
* :mod:`fedpriv.tasks.training`: local training and evaluation.
* :mod:`fedpriv.tasks.sources`: the data sets on disk and how to fetch them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv.tasks.seeds import derive_seed

if TYPE_CHECKING:
    from fedpriv.settings import Settings
    from fedpriv.tasks.base import Task

#: Names that :func:`get_task` knows. The first is the default: it needs no download.
TASK_NAMES = ("digits", "fashion-mnist", "mnist", "cifar10", "adult", "breast-cancer", "sentiment")

__all__ = ["TASK_NAMES", "derive_seed", "get_task", "task_of"]


def get_task(name: str) -> Task:
    """Return the task called `name`; its examples are read on first use.

    Parameters
    ----------
    name : str
        One of :data:`TASK_NAMES`.

    Returns
    -------
    Task
        The same object at every call within a process, so that its examples are read once.

    Raises
    ------
    ValueError
        If there is no such task.
    """
    from fedpriv.tasks.registry import find_task

    return find_task(name)


def task_of(settings: Settings) -> Task:
    """The task of a run, with the examples that its model needs to see.

    Raises
    ------
    ValueError
        For a task or model that does not exist.
    """
    from fedpriv.tasks.registry import find_task

    run = settings.run
    if run.task != "sentiment":
        return find_task(run.task, run.max_examples)
    from fedpriv.tasks.sentiment import sentiment_task

    return sentiment_task(run.model, run.language_model, run.language_data, run.max_examples)
