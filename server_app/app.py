"""ServerApp: run configuration -> stages -> report. Reads like a table of contents; holds no algorithm."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Tune, train and report as the run configuration says."""
    try:
        from fedpriv.stages.run import execute_run
    except ModuleNotFoundError as missing:
        raise SystemExit(
            f"fedpriv: the package {missing.name!r} is missing where the ServerApp runs; type in the project's "
            "folder, with the virtual environment that runs Flower active:  pip install -e ."
        ) from None
    execute_run(grid, context.run_config)
