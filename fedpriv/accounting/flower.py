"""Flower's ``PrivacyAccountant`` protocol on top of our accountant.

Hand a `FlowerAccountant` to Flower's fixed-clipping strategies, in the place of
``flwr.serverapp.RdpAccountant``:

    accountant = FlowerAccountant(PrivacyConfig(1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE,
                                                SamplingMethod.NO_AMPLIFICATION, max_epsilon=8.0))
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(...), 1.1, 1.0, 100, accountant=accountant)

Formal guarantees
-----------------
* Epsilon is never above that of Flower's accountant for the same events, except under replace_one: Flower's
  noise multiplier is relative to the clip norm C, replacing a client moves a sum by up to 2 C, and Flower's
  accountant does not double it. Here it is doubled.
* `would_exceed` changes nothing; it compares the same epsilon that would be reported.
"""

import math
from typing import TYPE_CHECKING

from fedpriv.accounting.accountant import Accountant, Epsilon
from fedpriv.accounting.events import FixedSizeGaussian, Gaussian, PoissonGaussian, PrivacyEvent
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_delta,
    check_integer,
    check_non_negative,
    check_positive,
)

if TYPE_CHECKING:
    from flwr.serverapp import GaussianPrivacyEvent, PrivacyConfig, PrivacySpent

_SCHEMA_VERSION = 1
_BACKEND = "fedpriv"


class FlowerAccountant:
    """Accountant for Flower's differential privacy strategies.

    Parameters
    ----------
    config : flwr.serverapp.PrivacyConfig
        Target delta, population size, neighbouring relation, sampling method, optional epsilon limit.
    use_pld : bool
        Also compose privacy-loss distributions. Without sampling the exact Gaussian curve is used, which
        costs nothing; with Poisson sampling a report costs about a second.
    """

    def __init__(self, config: "PrivacyConfig", use_pld: bool = True) -> None:
        self._config = config
        self._use_pld = use_pld
        self._releases: dict[GaussianPrivacyEvent, int] = {}
        self._accountant = self._new_accountant()

    @property
    def config(self) -> "PrivacyConfig":
        """The privacy configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """Number of private releases composed."""
        return sum(self._releases.values())

    def compose(self, event: "GaussianPrivacyEvent", count: int = 1) -> None:
        """Compose one or more identical releases.

        Raises
        ------
        InvalidArgument
            When the population differs from the configuration's, or the count is not an integer >= 1.
        """
        check_integer(1, count=count)
        self._accountant.compose(self._to_event(event), count)
        self._releases[event] = self._releases.get(event, 0) + count

    def get_epsilon(self, delta: float) -> float:
        """Cumulative epsilon at ``delta`` in (0, 1)."""
        return self._spent(delta).epsilon

    def get_delta(self, epsilon: float) -> float:
        """Cumulative delta at ``epsilon`` >= 0."""
        check_non_negative(epsilon=epsilon)
        return self._accountant.delta(epsilon, self._use_pld)

    def get_privacy_spent(self, delta: float | None = None) -> "PrivacySpent":
        """Cumulative expenditure at ``delta`` (default: the configuration's), and what proved it."""
        from flwr.serverapp import PrivacySpent

        spent = self._spent(self._config.target_delta if delta is None else delta)
        return PrivacySpent(spent.epsilon, spent.delta, self.num_releases, spent.bound, spent.order)

    def would_exceed(
        self, event: "GaussianPrivacyEvent", max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether composing the event would pass the limit (default: the configuration's).

        Raises
        ------
        InvalidArgument
            When there is no limit, or an argument is out of range.
        """
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise InvalidArgument("max_epsilon must be given here or in PrivacyConfig, got None")
        check_positive(max_epsilon=limit)
        check_integer(1, count=count)
        events = [(self._to_event(event), count)]
        delta = self._config.target_delta
        if self._accountant.would_be(events, delta, use_pld=False).epsilon <= limit:
            return False
        return self._accountant.would_be(events, delta, self._use_pld).epsilon > limit

    def state_dict(self) -> dict[str, object]:
        """JSON-serialisable state: configuration and composed releases."""
        return {
            "schema_version": _SCHEMA_VERSION,
            "backend": _BACKEND,
            "config": self._config_dict(),
            "compositions": [
                {
                    "noise_multiplier": event.noise_multiplier,
                    "sample_size": event.sample_size,
                    "population_size": event.population_size,
                    "count": count,
                }
                for event, count in self._releases.items()
            ],
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Replace the content by that of `state_dict`.

        Raises
        ------
        InvalidArgument
            When the state is of another accountant, version or configuration, or malformed; the content is
            then unchanged.
        """
        from flwr.serverapp import GaussianPrivacyEvent

        expected = {"schema_version": _SCHEMA_VERSION, "backend": _BACKEND, "config": self._config_dict()}
        for key, value in expected.items():
            if state.get(key) != value:
                raise InvalidArgument(f"{key} of the state must be {value!r}, got {state.get(key)!r}")
        compositions = state.get("compositions")
        if not isinstance(compositions, list):
            raise InvalidArgument(f"compositions of the state must be a list, got {compositions!r}")
        fresh = FlowerAccountant(self._config, self._use_pld)
        for item in compositions:
            try:
                fields = dict(item)
                count = fields.pop("count")
                event = GaussianPrivacyEvent(**fields)
            except (TypeError, ValueError, KeyError) as error:
                raise InvalidArgument(f"compositions of the state must be releases, got {item!r}") from error
            fresh.compose(event, count)
        self._accountant, self._releases = fresh._accountant, fresh._releases

    def _new_accountant(self) -> Accountant:
        relation = self._config.neighboring_relation.value
        return Accountant("add_or_remove" if relation == "add-or-remove-one" else "replace_one")

    def _to_event(self, event: "GaussianPrivacyEvent") -> PrivacyEvent:
        if event.population_size != self._config.population_size:
            raise InvalidArgument(
                f"population_size must be {self._config.population_size} as in PrivacyConfig, "
                f"got {event.population_size}"
            )
        noise_multiplier = event.noise_multiplier
        if self._accountant.adjacency == "replace_one":
            noise_multiplier /= 2
        method = self._config.sampling_method.value
        if method == "poisson":
            return PoissonGaussian(event.sample_size / event.population_size, noise_multiplier)
        if method == "without-replacement":
            return FixedSizeGaussian(event.population_size, event.sample_size, noise_multiplier)
        if method == "no-amplification":
            return Gaussian(noise_multiplier)
        raise InvalidArgument(f"sampling_method must be one that Flower 1.42 knows, got {method!r}")

    def _spent(self, delta: float) -> Epsilon:
        check_delta(delta=delta)
        check_positive(delta=delta)
        return self._accountant.epsilon(delta, self._use_pld)

    def _config_dict(self) -> dict[str, object]:
        limit = self._config.max_epsilon
        return {
            "target_delta": self._config.target_delta,
            "population_size": self._config.population_size,
            "neighboring_relation": self._config.neighboring_relation.value,
            "sampling_method": self._config.sampling_method.value,
            "max_epsilon": None if limit is None or math.isinf(limit) else limit,
        }
