"""Values of random allocation by other packages; runs in their own environment, driven by ``allocation.py``.

Reads one JSON object from standard input: ``{"method": ..., "sigma": ..., "bins": ..., "epochs": ..., "delta": ...}``,
prints ``{"upper": ..., "lower": ... or null, "seconds": ..., "megabytes": ...}``. A first, tiny call compiles what the
package compiles, outside the time.
"""

import json
import resource
import sys
import time
from typing import Any


def pld_range(sigma: float, bins: int, epochs: int, delta: float) -> tuple[float, float | None]:
    """pld-accounting: adaptive refinement to its default accuracy (bounds within ten percent)."""
    from PLD_accounting import gaussian_allocation_epsilon_range

    upper, lower = gaussian_allocation_epsilon_range(
        delta=delta, sigma=sigma, num_steps=bins, num_epochs=epochs
    )
    return upper, lower


def pld_default(sigma: float, bins: int, epochs: int, delta: float) -> tuple[float, float | None]:
    """pld-accounting: one evaluation with its default configuration."""
    from PLD_accounting import AllocationSchemeConfig, PrivacyParams, gaussian_allocation_epsilon_configurable

    params = PrivacyParams(sigma=sigma, num_steps=bins, num_epochs=epochs, delta=delta)
    return gaussian_allocation_epsilon_configurable(params=params, config=AllocationSchemeConfig()), None


def direct(sigma: float, bins: int, epochs: int, delta: float) -> tuple[float, float | None]:
    """random-allocation: the Rényi bound of its "direct" method, integer orders to 60."""
    from random_allocation import PrivacyParams, SchemeConfig, allocation_epsilon_direct

    config = SchemeConfig(allocation_direct_alpha_orders=list(range(2, 61)))
    params = PrivacyParams(sigma=sigma, num_steps=bins, num_epochs=epochs, delta=delta)
    return allocation_epsilon_direct(params, config), None


def direct_add(sigma: float, bins: int, epochs: int, delta: float) -> tuple[float, float | None]:
    """random-allocation: the add direction of its "direct" method."""
    from random_allocation import PrivacyParams, SchemeConfig
    from random_allocation.random_allocation_scheme.direct import allocation_epsilon_direct_add

    params = PrivacyParams(sigma=sigma, num_steps=bins, num_epochs=epochs, delta=delta)
    return allocation_epsilon_direct_add(params, SchemeConfig()), None


def decomposition(sigma: float, bins: int, epochs: int, delta: float) -> tuple[float, float | None]:
    """random-allocation: the "decomposition" method (a Poisson-sampled distribution, enlarged)."""
    from random_allocation import PrivacyParams, SchemeConfig, allocation_epsilon_decomposition

    params = PrivacyParams(sigma=sigma, num_steps=bins, num_epochs=epochs, delta=delta)
    return allocation_epsilon_decomposition(params, SchemeConfig()), None


METHODS = {
    "pld-accounting range": pld_range,
    "pld-accounting default": pld_default,
    "random-allocation direct": direct,
    "random-allocation direct, add direction": direct_add,
    "random-allocation decomposition": decomposition,
}


def main() -> None:
    """Answer one question."""
    question: dict[str, Any] = json.load(sys.stdin)
    method = METHODS[question.pop("method")]
    method(2.0, 10, 1, 1e-5)
    start = time.perf_counter()
    upper, lower = method(**question)
    seconds = time.perf_counter() - start
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"upper": float(upper), "lower": lower, "seconds": seconds, "megabytes": megabytes}))


if __name__ == "__main__":
    main()
