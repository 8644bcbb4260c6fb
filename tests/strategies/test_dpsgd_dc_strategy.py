"""Client-level DPSGD-DC over messages: what is summed, what is charged, how rounds and runs end."""

import logging
import struct

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from strategy_helpers import (
    Clients,
    make_plan,
    make_strategy,
    open_ledger,
    partition,
    record,
    vector_of,
)

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.clients import client_level_dp_mod
from fedpriv.ledger import BudgetExceeded
from fedpriv.mechanisms import Ball, FixedSizeCohort, PoissonCohort, SelfSampling
from fedpriv.secure_sum import secure_sum_mod
from fedpriv.strategies import DpsgdDc, NoisedSum, ServerAdam, ServerSgd
from fedpriv.testing import LocalGrid

QUIET = 1e-3  # a noise multiplier that leaves the signal visible


def mean_update(strategy: DpsgdDc, grid: LocalGrid, length: int = 4, server_round: int = 1) -> np.ndarray:
    outcome = strategy.train_round(grid, server_round, record(np.zeros(length)))
    assert outcome.arrays is not None
    return -vector_of(outcome.arrays)


def unit(index: int, scale: float = 1.0, length: int = 4) -> np.ndarray:
    found = np.zeros(length)
    found[index] = scale
    return found


# -- what is summed --------------------------------------------------------------------------------------------


def test_mean_of_clipped_updates_over_a_fixed_divisor() -> None:
    updates = [unit(0, 0.5), unit(1, 30.0), unit(2, -0.25), *[np.zeros(4)] * 5]
    plan = make_plan(noise_multiplier=QUIET)
    mean = mean_update(make_strategy(plan), LocalGrid(Clients(lambda c, m: updates[c]).app, 8))
    assert mean == pytest.approx(np.array([0.5, 1.0, -0.25, 0.0]) / 8, abs=2e-3)


@pytest.mark.parametrize("mode", ["protocol", "simulated"])
def test_every_client_counts_once_whatever_its_number_of_examples(mode: str) -> None:
    """9000 and 1000 examples: weighting would give .8 and an epsilon twice the charged one."""
    counts = {0: 9000, 1: 1000}
    app = ClientApp()

    @app.train(mods=[client_level_dp_mod])
    def train(msg: Message, context: Context) -> Message:
        from flwr.app import MetricRecord

        moved = vector_of(msg.content["arrays"]) - (unit(0) if partition(context) == 0 else -unit(0))  # type: ignore[arg-type]
        metrics = MetricRecord({"num-examples": counts[partition(context)]})
        return Message(RecordDict({"arrays": record(moved), "metrics": metrics}), reply_to=msg)

    plan = make_plan(noise_multiplier=QUIET, num_clients=2, min_survivors=2)
    grid = LocalGrid(app, 2, node_config={"min-neighbours": 1})
    mean = mean_update(make_strategy(plan, mode=mode), grid)
    assert mean[0] == pytest.approx(0.0, abs=5e-3)  # (1 - 1) / 2


#: What goes along for the next round, at most.
AHEAD = ({wire.FIELD_MASK_KEY, wire.FIELD_SHARE_KEY}, {wire.FIELD_SHARES, wire.FIELD_COMMITMENT})


def test_nothing_but_the_masked_vector_leaves_a_client() -> None:
    seen: list[Message] = []

    def intercept(client: int, request: Message, reply: Message) -> list[Message]:
        seen.append(reply)
        return [reply]

    grid = LocalGrid(Clients().app, 8, intercept=intercept)
    mean_update(make_strategy(make_plan()), grid)
    head = {wire.FIELD_SCHEMA, wire.FIELD_STAGE, wire.FIELD_SESSION}
    assert len(seen) == 8 * 4
    for reply in seen:
        assert reply.has_content()
        assert set(reply.content) <= {wire.RECORD_SECURE_SUM, wire.RECORD_RESULT, wire.RECORD_AHEAD}
        if (ahead := reply.content.get(wire.RECORD_AHEAD)) is not None:
            assert set(ahead) - head in AHEAD
        assert not reply.content.metric_records
        raw = repr(reply.content).encode() + b"".join(
            array.data for found in reply.content.array_records.values() for array in found.values()
        )
        assert b"num-examples" not in raw
        assert struct.pack("<d", 0.123456789) not in raw


def test_few_answers_are_divided_by_the_expected_cohort() -> None:
    """10 expected, 4 answer: dividing by 4 would need 2.5 times the noise."""

    def drop(client: int, request: Message) -> str | None:
        return "error" if client >= 4 else None

    clients = Clients(lambda client, model: unit(0))
    plan = make_plan(noise_multiplier=QUIET, num_clients=10, min_survivors=4)
    outcome = make_strategy(plan).train_round(
        LocalGrid(clients.app, 10, drop=drop),  # type: ignore[arg-type]
        1,
        record(np.zeros(4)),
    )
    assert outcome.survivors == 4
    assert outcome.arrays is not None
    assert -vector_of(outcome.arrays)[0] == pytest.approx(4 / 10, abs=3e-3)


def test_arrays_of_all_kinds_come_back_in_their_shapes_and_dtypes() -> None:
    arrays = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "temperature": np.array(2.0),
        "half": np.ones(2, dtype=np.float16),
    }
    app = ClientApp()

    @app.train(mods=[client_level_dp_mod])
    def train(msg: Message, context: Context) -> Message:
        received = {name: array.numpy() for name, array in msg.content["arrays"].items()}  # type: ignore[union-attr]
        moved = {name: Array(np.asarray(value - 100, value.dtype)) for name, value in received.items()}
        return Message(RecordDict({"model": ArrayRecord(dict(reversed(moved.items())))}), reply_to=msg)

    plan = make_plan(noise_multiplier=QUIET, length=9, clipping_norm=3.0)
    start = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    outcome = make_strategy(plan).train_round(LocalGrid(app, 8), 1, start)
    assert outcome.arrays is not None
    moved = {name: array.numpy() for name, array in outcome.arrays.items()}
    assert list(moved) == list(arrays)
    for name, value in arrays.items():
        assert moved[name].shape == value.shape
        assert moved[name].dtype == value.dtype
        # one factor for all: the update (100, ..., 100) of norm 300 is cut to norm 3, each coordinate to 1
        assert np.allclose(np.asarray(value, np.float64) - moved[name], 1.0, atol=2e-2)


def test_self_sampled_contributions_are_those_whose_coin_said_yes() -> None:
    plan = make_plan(noise_multiplier=QUIET, sampler=SelfSampling(0.5), idle_clients_train=False, rounds=8)
    clients = Clients(lambda client, model: unit(0, 1.0))
    grid, strategy, total = LocalGrid(clients.app, 8), make_strategy(plan), 0.0
    for server_round in range(1, 9):
        before = len(clients.calls)
        total = mean_update(strategy, grid, server_round=server_round)[0] * plan.divisor
        assert total == pytest.approx(len(clients.calls) - before, abs=0.02)
    assert 5 < len(clients.calls) < 59  # binomial(64, 1/2), chance 1e-11


def test_idle_clients_train_and_throw_the_result_away() -> None:
    plan = make_plan(noise_multiplier=QUIET, sampler=SelfSampling(1e-9))
    clients = Clients(lambda client, model: unit(0, 1.0))
    mean = mean_update(make_strategy(plan), LocalGrid(clients.app, 8))
    assert sorted(clients.calls) == list(range(8))
    assert mean[0] * plan.divisor == pytest.approx(0.0, abs=0.02)


def test_poisson_cohort_contributes_and_who_fills_up_does_not() -> None:
    clients = Clients(lambda client, model: unit(0, 1.0))
    plan = make_plan(noise_multiplier=QUIET, sampler=PoissonCohort(0.3), rounds=8)
    grid, strategy = LocalGrid(clients.app, 8), make_strategy(plan)
    for server_round in range(1, 9):
        before = len(clients.calls)
        outcome = strategy.train_round(grid, server_round, record(np.zeros(4)))
        cohort = len(clients.calls) - before
        assert outcome.arrays is not None
        assert outcome.asked == max(cohort, 6)  # min_survivors; nobody else trains
        assert -vector_of(outcome.arrays)[0] * plan.divisor == pytest.approx(cohort, abs=0.02)
    assert len(clients.calls) < 45  # binomial(64, .3), chance 1e-10; all that are asked would be 48 at least


def test_fixed_size_cohort_is_asked() -> None:
    clients = Clients(lambda client, model: unit(0, 1.0))
    plan = make_plan(
        noise_multiplier=QUIET, sampler=FixedSizeCohort(5), adjacency="replace_one", min_survivors=4
    )
    outcome = make_strategy(plan).train_round(LocalGrid(clients.app, 8), 1, record(np.zeros(4)))
    assert (outcome.asked, outcome.survivors, len(clients.calls)) == (5, 5, 5)
    assert outcome.arrays is not None
    assert -vector_of(outcome.arrays)[0] == pytest.approx(1.0, abs=0.01)


def test_config_reaches_the_function_and_is_not_changed() -> None:
    seen = []
    app = ClientApp()

    @app.train(mods=[client_level_dp_mod])
    def train(msg: Message, context: Context) -> Message:
        seen.append((set(msg.content), dict(msg.content["config"]), msg.metadata.message_type))
        return Message(RecordDict({"arrays": msg.content["arrays"]}), reply_to=msg)

    config = ConfigRecord({"learning-rate": 0.5})
    make_strategy(make_plan()).train_round(LocalGrid(app, 8), 3, record(np.zeros(4)), config)
    assert seen == [({"arrays", "config"}, {"learning-rate": 0.5, "server-round": 3}, "train")] * 8
    assert dict(config) == {"learning-rate": 0.5}


# -- the server's step -----------------------------------------------------------------------------------------


def test_step_schedule_and_projection_are_applied_in_this_order() -> None:
    plan = make_plan(noise_multiplier=QUIET, rounds=4)
    clients = Clients(lambda client, model: unit(0, 1.0))
    strategy = make_strategy(plan, optimizer=ServerSgd(2.0), ball=Ball(1.5), cosine=True)
    first = mean_update(strategy, LocalGrid(clients.app, 8))
    assert np.linalg.norm(first) == pytest.approx(1.5, abs=1e-9)  # 2 * 1, projected
    third = mean_update(strategy, LocalGrid(clients.app, 8), server_round=3)
    assert third[0] == pytest.approx(2.0 * 0.5, abs=0.02)  # half of the way down the cosine


def test_momentum_and_adam_keep_their_state_over_rounds() -> None:
    plan = make_plan(noise_multiplier=QUIET)
    grid = LocalGrid(Clients(lambda client, model: unit(0, 1.0)).app, 8)
    momentum = make_strategy(plan, optimizer=ServerSgd(1.0, 0.5))
    assert mean_update(momentum, grid)[0] == pytest.approx(1.0, abs=0.01)
    assert mean_update(momentum, grid, server_round=2)[0] == pytest.approx(1.5, abs=0.01)
    adam = make_strategy(plan, optimizer=ServerAdam(0.1))
    assert mean_update(adam, grid)[0] == pytest.approx(0.1, rel=0.02)


# -- Flower's own loop -----------------------------------------------------------------------------------------


def test_training_through_flowers_loop_reaches_the_clients_mean() -> None:
    """Local gradient steps on |w - t_c|^2 / 2: the model goes to the mean target."""
    targets = np.random.default_rng(0).normal(size=(8, 4)) * 0.3
    clients = Clients(lambda client, model: 0.5 * (model - targets[client]))
    plan = make_plan(noise_multiplier=QUIET, rounds=12)
    strategy = make_strategy(plan)
    rounds = []
    result = strategy.start(
        LocalGrid(clients.app, 8),
        record(np.zeros(4)),
        num_rounds=12,
        evaluate_fn=lambda server_round, arrays: rounds.append(server_round),
    )
    assert vector_of(result.arrays) == pytest.approx(targets.mean(axis=0), abs=5e-3)
    assert rounds == list(range(13))
    assert dict(result.train_metrics_clientapp[12]) == {"survivors": 8, "asked": 8}
    assert not result.evaluate_metrics_clientapp
    assert strategy.stopped is None


def test_budget_stop_keeps_the_model_and_ends_well(tmp_path, caplog) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(noise_multiplier=5.0)
    two_rounds = float(_epsilon_of(plan, 2))
    clients = Clients(lambda client, model: unit(0, 1.0))
    with open_ledger(tmp_path / "l.jsonl", plan, two_rounds * 1.001) as ledger:
        strategy = make_strategy(plan, ledger)
        models = []
        result = strategy.start(
            LocalGrid(clients.app, 8),
            record(np.zeros(4)),
            num_rounds=5,
            evaluate_fn=lambda server_round, arrays: models.append(vector_of(arrays)),
        )
        assert [entry.round for entry in ledger.entries] == [1, 2]
        assert ledger.epsilon("server", 1e-5).epsilon <= two_rounds * 1.001
        with pytest.raises(BudgetExceeded):
            strategy.train_round(LocalGrid(clients.app, 8), 3, record(np.zeros(4)))
    assert len(clients.calls) == 16
    assert "round 3" in str(strategy.stopped)
    assert np.array_equal(vector_of(result.arrays), models[2])
    assert not np.array_equal(models[1], models[2])
    assert all(np.array_equal(model, models[2]) for model in models[3:])


def _epsilon_of(plan, rounds: int) -> float:  # type: ignore[no-untyped-def]
    from fedpriv.accounting import Accountant

    return Accountant(plan.adjacency).compose(plan.events()["server"], rounds).epsilon(1e-5).epsilon


def test_a_run_without_any_release_keeps_the_initial_model(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan()
    with open_ledger(tmp_path / "l.jsonl", plan, 0.01) as ledger:
        result = make_strategy(plan, ledger).start(
            LocalGrid(Clients().app, 8), record(np.ones(4)), num_rounds=2
        )
        assert ledger.entries == ()
    assert vector_of(result.arrays).tolist() == [1.0] * 4
    grid = LocalGrid(Clients().app, 8, drop=lambda client, request: "silent")
    result = make_strategy(plan).start(grid, record(np.ones(4)), num_rounds=2)
    assert vector_of(result.arrays).tolist() == [1.0] * 4


def test_more_rounds_than_planned_are_not_run() -> None:
    plan = make_plan(rounds=2)
    clients = Clients()
    strategy = make_strategy(plan)
    strategy.start(LocalGrid(clients.app, 8), record(np.zeros(4)), num_rounds=4)
    assert len(clients.calls) == 16
    assert "2 rounds" in str(strategy.stopped)
    for server_round in (0, 3):
        with pytest.raises(InvalidArgument, match=rf"server_round: {server_round} is outside 1 .. 2"):
            strategy.train_round(LocalGrid(clients.app, 8), server_round, record(np.zeros(4)))


# -- the ledger ------------------------------------------------------------------------------------------------


def test_every_round_is_charged_with_the_plans_events_before_anything_is_sent(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(noise_multiplier=3.0, sampler=SelfSampling(0.5), rounds=3)
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        charged_at_send = []

        def drop(client: int, request: Message) -> None:
            charged_at_send.append(len(ledger.entries))

        grid = LocalGrid(Clients().app, 8, drop=drop)
        make_strategy(plan, ledger).start(grid, record(np.zeros(4)), num_rounds=3)
        assert min(charged_at_send) == 1
        assert len(ledger.entries) == 3
        for number, entry in enumerate(ledger.entries, start=1):
            assert (entry.stage, entry.round, entry.status) == ("train", number, "committed")
            assert entry.events == plan.events()
            assert dict(entry.realised) == {"survivors": 8, "noise-shares": 8}
            assert entry.details["clipping norm"] == 1.0


def drop_at(stage: str, *clients: int):  # type: ignore[no-untyped-def]
    def drop(client: int, request: Message) -> str | None:
        return "silent" if client in clients and wire.stage_of(request) == stage else None

    return drop


@pytest.mark.parametrize("stage", [wire.STAGE_KEYS, wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT])
def test_an_abort_before_unmasking_costs_nothing(stage: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan()
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        grid = LocalGrid(Clients().app, 8, drop=drop_at(stage, 0, 1, 2))
        outcome = make_strategy(plan, ledger).train_round(grid, 1, record(np.zeros(4)))
        assert (outcome.arrays, outcome.released, outcome.survivors) == (None, False, 0)
        assert [entry.status for entry in ledger.entries] == ["void"]
        assert ledger.epsilon("server", 1e-5).epsilon == 0


def test_an_abort_after_an_unmask_request_is_charged(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan()
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        grid = LocalGrid(Clients().app, 8, drop=drop_at(wire.STAGE_UNMASK, 0, 1, 2, 3, 4))
        outcome = make_strategy(plan, ledger).train_round(grid, 1, record(np.zeros(4)))
        assert outcome.arrays is None
        assert outcome.released
        assert [entry.status for entry in ledger.entries] == ["committed"]
        assert ledger.epsilon("server", 1e-5).epsilon == pytest.approx(_epsilon_of(plan, 1))


def test_an_aborted_round_leaves_the_model_and_the_next_one_goes_on(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(noise_multiplier=QUIET)

    def drop(client: int, request: Message) -> str | None:
        update = request.content.get(wire.RECORD_UPDATE)
        return "silent" if update is not None and update[wire.UPDATE_ROUND] == 2 else None

    clients = Clients(lambda client, model: unit(0, 1.0))
    result = make_strategy(plan).start(
        LocalGrid(clients.app, 8, drop=drop),  # type: ignore[arg-type]
        record(np.zeros(4)),
        num_rounds=3,
    )
    assert -vector_of(result.arrays)[0] == pytest.approx(2.0, abs=0.02)
    assert dict(result.train_metrics_clientapp[2]) == {"survivors": 0, "asked": 8}


def test_a_crash_on_the_way_leaves_the_charge(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan()

    def crash(client: int, request: Message) -> None:
        raise KeyboardInterrupt

    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        grid = LocalGrid(Clients().app, 8, drop=crash)
        with pytest.raises(KeyboardInterrupt):
            make_strategy(plan, ledger).train_round(grid, 1, record(np.zeros(4)))
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        assert [entry.status for entry in ledger.entries] == ["interrupted"]
        assert ledger.epsilon("server", 1e-5).epsilon == pytest.approx(_epsilon_of(plan, 1))


def test_an_error_before_anything_is_unmasked_costs_nothing(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan, grid = make_plan(), LocalGrid(Clients().app, 8)
    nodes = list(grid.get_node_ids())
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        with pytest.raises(ValueError, match="named twice"):
            make_strategy(plan, ledger).train_round(
                grid, 1, record(np.zeros(4)), clients=[*nodes[:7], nodes[0]]
            )
        assert [entry.status for entry in ledger.entries] == ["void"]


def test_a_sum_without_noise_is_refused_by_the_ledger(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(noise_multiplier=0.0)
    clients = Clients(lambda client, model: unit(0, 1.0))
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        with pytest.raises(InvalidArgument, match="infinite epsilon"):
            make_strategy(plan, ledger).train_round(LocalGrid(clients.app, 8), 1, record(np.zeros(4)))
        assert ledger.entries == ()
    assert clients.calls == []
    # only code that does its own accounting gets it (a baseline without privacy)
    assert mean_update(make_strategy(plan), LocalGrid(clients.app, 8)).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_central_noise_is_charged_openly(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan(kind="central", sampler=PoissonCohort(1e-9), noise_multiplier=4.0)
    with open_ledger(tmp_path / "l.jsonl", plan, 20.0, view="participants") as ledger:
        outcome = make_strategy(plan, ledger).train_round(LocalGrid(Clients().app, 8), 1, record(np.zeros(4)))
        assert outcome.released
        assert ledger.epsilon("server", 1e-5).epsilon == float("inf")
        assert ledger.epsilon("participants", 1e-5).epsilon == pytest.approx(_gaussian_epsilon(4.0))
        assert ledger.epsilon("release", 1e-5).epsilon < 1e-3
        assert dict(ledger.entries[0].realised)["noise-shares"] == 0


def _gaussian_epsilon(noise_multiplier: float) -> float:
    from fedpriv.accounting import gaussian_epsilon

    return gaussian_epsilon(noise_multiplier, 1e-5)


# -- federations and clients that do not fit -------------------------------------------------------------------


def test_too_few_clients_are_a_clean_abort(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = make_plan()
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        outcome = make_strategy(plan, ledger).train_round(LocalGrid(Clients().app, 5), 1, record(np.zeros(4)))
        assert (outcome.arrays, outcome.released) == (None, False)
        assert ledger.epsilon("server", 1e-5).epsilon == 0


def test_more_clients_than_planned_are_refused_or_end_the_loop() -> None:
    plan = make_plan()
    with pytest.raises(InvalidArgument, match=r"9 clients, but the plan .* was made for 8"):
        make_strategy(plan).train_round(LocalGrid(Clients().app, 9), 1, record(np.zeros(4)))
    few, many = LocalGrid(Clients().app, 8), LocalGrid(Clients().app, 9)
    few_ids = list(few.get_node_ids())
    online = iter([few_ids, [*few_ids, *list(many.get_node_ids())[:1]]])
    few.get_node_ids = lambda: next(online)  # type: ignore[method-assign]
    strategy = make_strategy(plan)
    result = strategy.start(few, record(np.zeros(4)), num_rounds=2)
    assert "9 clients" in str(strategy.stopped)
    assert np.any(vector_of(result.arrays) != 0)


def test_a_fixed_size_cohort_is_not_drawn_from_fewer_clients_than_accounted() -> None:
    plan = make_plan(sampler=FixedSizeCohort(5), adjacency="replace_one", min_survivors=4)
    clients = Clients()
    outcome = make_strategy(plan).train_round(LocalGrid(clients.app, 7), 1, record(np.zeros(4)))
    assert (outcome.arrays, outcome.released, clients.calls) == (None, False, [])


def test_arrays_that_do_not_fit_the_plan_are_refused() -> None:
    strategy, grid = make_strategy(make_plan()), LocalGrid(Clients().app, 8)
    with pytest.raises(InvalidArgument, match="5 coordinates, the plan was made for 4"):
        strategy.train_round(grid, 1, record(np.zeros(5)))
    for name, value in (("bn.running_mean", np.zeros(4)), ("counts", np.zeros(4, dtype=np.int64))):
        with pytest.raises(InvalidArgument, match=name):
            strategy.train_round(grid, 1, ArrayRecord({name: Array(value)}))


@pytest.mark.parametrize("mode", ["protocol", "simulated"])
def test_a_client_that_does_not_keep_its_range_is_found(mode: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    def huge(msg: Message, context: Context) -> np.ndarray:
        return np.full(4, 2**30 if partition(context) == 3 else 0)

    app = ClientApp()
    app.train(mods=[secure_sum_mod(huge)])(lambda msg, context: msg)
    plan = make_plan()
    with open_ledger(tmp_path / "l.jsonl", plan) as ledger:
        outcome = make_strategy(plan, ledger, mode=mode).train_round(
            LocalGrid(app, 8), 1, record(np.zeros(4))
        )
        assert outcome.arrays is None
        assert outcome.released
        assert [entry.status for entry in ledger.entries] == ["committed"]


@pytest.mark.parametrize(
    "raised", [ValueError("patient zero"), SystemExit("patient zero"), KeyError("patient zero")]
)
def test_a_failing_train_function_is_a_zero_contribution(raised: BaseException, caplog) -> None:  # type: ignore[no-untyped-def]
    def update(client: int, model: np.ndarray) -> np.ndarray:
        if client == 2:
            raise raised
        return unit(0, 1.0)

    sent: list[str] = []

    def intercept(client: int, request: Message, reply: Message) -> list[Message]:
        sent.append(repr(reply))
        return [reply]

    plan = make_plan(noise_multiplier=QUIET)
    with caplog.at_level(logging.DEBUG):
        mean = mean_update(make_strategy(plan), LocalGrid(Clients(update).app, 8, intercept=intercept))
    assert mean[0] == pytest.approx(7 / 8, abs=3e-3)
    assert "patient" not in caplog.text
    assert type(raised).__name__ in caplog.text  # at the silo: type and place
    assert not any("patient" in text for text in sent)


# -- seeds -----------------------------------------------------------------------------------------------------


def test_seeded_noise_is_reproducible_in_a_simulation_only() -> None:
    plan = make_plan(seeded=True)
    runs = [
        mean_update(make_strategy(plan, seed=7, mode=mode), LocalGrid(Clients().app, 8))
        for mode in ("protocol", "simulated")
    ]
    assert np.array_equal(*runs)
    assert not np.array_equal(runs[0], mean_update(make_strategy(plan, seed=8), LocalGrid(Clients().app, 8)))
    second = mean_update(make_strategy(plan, seed=7), LocalGrid(Clients().app, 8), server_round=2)
    assert not np.array_equal(runs[0], second)
    real = LocalGrid(Clients().app, 8, simulation=False)
    outcome = make_strategy(plan, seed=7).train_round(real, 1, record(np.zeros(4)))
    assert outcome.arrays is None
    assert outcome.released is False


def test_seeds_must_be_declared() -> None:
    for plan, options in ((make_plan(), {"seed": 1}), (make_plan(seeded=True), {})):
        with pytest.raises(InvalidArgument, match=r"seed: .* noise\.seeded"):
            make_strategy(plan, **options)
    central = make_plan(kind="central")
    strategy = DpsgdDc(central, NoisedSum(None, seed=3))  # would replace secure noise by seeded noise
    with pytest.raises(InvalidArgument, match="seed: 3"):
        strategy.train_round(LocalGrid(Clients().app, 8), 1, record(np.zeros(4)))


def test_seeded_central_noise_is_reproducible() -> None:
    plan = make_plan(kind="central", seeded=True)
    runs = [mean_update(make_strategy(plan, seed=7), LocalGrid(Clients().app, 8)) for _ in range(2)]
    assert np.array_equal(*runs)
    assert np.any(runs[0] != 0)
