"""Our accountant behind Flower's protocol, inside Flower's own strategy."""

import json
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from fedpriv.accounting.flower import FlowerAccountant
from fedpriv.accounting.gaussian import gaussian_epsilon
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.testing import LocalGrid

PLAIN = (NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
POISSON = (NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON)
FIXED = (NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT)


def config(model=PLAIN, population=10, max_epsilon=None):
    return PrivacyConfig(1e-5, population, *model, max_epsilon=max_epsilon)


def client_app():
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = message.content["arrays"].to_numpy_ndarrays()
        content = {
            "arrays": ArrayRecord([array + 0.01 for array in arrays]),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        from flwr.app import Message

        return Message(content=RecordDict(content), reply_to=message)

    return app


def run_strategy(accountant, rounds, noise_multiplier=2.0, clients=4):
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients),
        noise_multiplier,
        1.0,
        clients,
        accountant=accountant,
    )
    strategy.start(LocalGrid(client_app(), clients), ArrayRecord([np.zeros(3)]), num_rounds=rounds)
    return strategy


def test_flowers_strategy_accounts_with_it():
    accountant: PrivacyAccountant = FlowerAccountant(config(population=4))
    spent = run_strategy(accountant, rounds=3).privacy_spent()
    assert spent.num_releases == 3
    assert spent.accounting_method == "analytic"
    assert spent.epsilon == pytest.approx(gaussian_epsilon(2.0 / math.sqrt(3), 1e-5), rel=1e-9)


def test_flowers_strategy_stops_at_the_limit():
    limit = gaussian_epsilon(2.0 / math.sqrt(2), 1e-5) * 1.001
    accountant = FlowerAccountant(config(population=4, max_epsilon=limit))
    with pytest.raises(PrivacyBudgetExhausted):
        run_strategy(accountant, rounds=3)
    assert accountant.num_releases == 2
    assert accountant.get_epsilon(1e-5) <= limit


@pytest.mark.parametrize("model", [PLAIN, POISSON])
def test_never_above_flowers_own_accountant(model):
    ours, flowers = FlowerAccountant(config(model)), RdpAccountant(config(model))
    for accountant in (ours, flowers):
        accountant.compose(GaussianPrivacyEvent(1.2, 1, 10), count=40)
    assert ours.get_epsilon(1e-5) < flowers.get_epsilon(1e-5)
    rdp_only = FlowerAccountant(config(model), use_pld=False)
    rdp_only.compose(GaussianPrivacyEvent(1.2, 1, 10), 40)
    assert rdp_only.get_epsilon(1e-5) == pytest.approx(flowers.get_epsilon(1e-5), rel=1e-9)
    assert rdp_only.get_delta(3.0) == pytest.approx(flowers.get_delta(3.0), rel=1e-6)


def test_replace_one_doubles_the_clip():
    """Flower takes noise over clip for noise over sensitivity: half the noise costs the same there."""
    ours, flowers = FlowerAccountant(config(FIXED)), RdpAccountant(config(FIXED))
    ours.compose(GaussianPrivacyEvent(2.0, 2, 10), 5)
    flowers.compose(GaussianPrivacyEvent(1.0, 2, 10), 5)
    assert ours.get_epsilon(1e-5) == pytest.approx(flowers.get_epsilon(1e-5), rel=1e-9)


def test_epsilon_and_delta_are_inverse():
    accountant = FlowerAccountant(config())
    accountant.compose(GaussianPrivacyEvent(1.0, 10, 10), 3)
    assert accountant.get_delta(accountant.get_epsilon(1e-6)) == pytest.approx(1e-6, rel=1e-6)


def test_would_exceed_changes_nothing():
    accountant = FlowerAccountant(config(max_epsilon=5.0))
    event = GaussianPrivacyEvent(1.0, 10, 10)
    assert not accountant.would_exceed(event)
    assert accountant.would_exceed(event, count=5)
    assert accountant.would_exceed(event, max_epsilon=1.0)
    # Between the exact value 4.377 and the Rényi value 4.728 only the exact one allows the release.
    assert not accountant.would_exceed(event, max_epsilon=4.5)
    assert accountant.num_releases == 0
    assert accountant.get_privacy_spent().epsilon == 0.0


def test_state_survives_json():
    first = FlowerAccountant(config(POISSON, max_epsilon=8.0))
    first.compose(GaussianPrivacyEvent(1.2, 1, 10), 20)
    first.compose(GaussianPrivacyEvent(1.5, 2, 10))
    second = FlowerAccountant(config(POISSON, max_epsilon=8.0))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.num_releases == 21
    assert second.get_privacy_spent() == first.get_privacy_spent()


def test_foreign_state_is_refused_and_changes_nothing():
    accountant = FlowerAccountant(config(POISSON))
    accountant.compose(GaussianPrivacyEvent(1.2, 1, 10))
    good = accountant.state_dict()
    for change, message in [
        ({"backend": "rdp"}, "backend of the state"),
        ({"schema_version": 7}, "schema_version of the state"),
        ({"config": {**good["config"], "population_size": 11}}, "config of the state"),
        ({"compositions": None}, "compositions of the state must be a list"),
        ({"compositions": [{"count": 1}]}, "must be releases"),
        ({"compositions": [{**good["compositions"][0], "count": 0}]}, "count must be"),
        ({"compositions": [{**good["compositions"][0], "population_size": 9}]}, "population_size must be"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            accountant.load_state_dict({**good, **change})
    assert accountant.num_releases == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.compose(GaussianPrivacyEvent(1.0, 1, 11)), "population_size must be 10"),
        (lambda a: a.compose(GaussianPrivacyEvent(1.0, 1, 10), 0), "count must be"),
        (lambda a: a.get_epsilon(0.0), "delta must be"),
        (lambda a: a.get_epsilon(1.0), "delta must be"),
        (lambda a: a.get_delta(-1.0), "epsilon must be"),
        (lambda a: a.would_exceed(GaussianPrivacyEvent(1.0, 1, 10)), "max_epsilon must be"),
        (lambda a: a.would_exceed(GaussianPrivacyEvent(1.0, 1, 10), -1.0), "max_epsilon must be"),
    ],
)
def test_rejections(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call(FlowerAccountant(config()))
