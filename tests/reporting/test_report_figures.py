"""Figures show the numbers of the report."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.image import imread

from fedpriv.accounting import VIEWS
from fedpriv.reporting import (
    SEEDED_NOISE,
    EpsilonPoint,
    RoundRecord,
    RunReport,
    StageReport,
    ViewReport,
    VoteRecord,
)
from fedpriv.reporting.figures import (
    MAX_BARS,
    describe_candidate,
    draw_accuracy,
    draw_epsilon,
    draw_tallies,
    write_figures,
)


def changed(report: RunReport, **updates) -> RunReport:
    return report.model_copy(update=updates, deep=True)


def lines_of(axes) -> dict[str, np.ndarray]:
    return {
        line.get_label(): line.get_xydata()
        for line in axes.get_lines()
        if not line.get_label().startswith("_")
    }


def texts_of(figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def test_epsilon_lines_are_the_curves(report):
    figure = draw_epsilon(report)
    axes = figure.axes[0]
    lines = lines_of(axes)
    assert len(lines) == 3
    for view in VIEWS:
        (data,) = [data for label, data in lines.items() if label.startswith(f"{view}: ")]
        expected = [point.epsilon for point in report.epsilon_curves[view]]
        assert data[::2, 1].tolist() == data[1::2, 1].tolist() == expected
        # Each release keeps its level from half a place before its number to half a place after.
        assert data[::2, 0].tolist() == [i - 0.5 for i in range(1, len(expected) + 1)]
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 8
    assert "delta = 0.001" in axes.get_ylabel() and "release" in axes.get_xlabel()
    text = texts_of(figure)
    assert "budget of the server view: 8" in text
    assert "tune" in text and "train" in text


def test_thinned_curves_are_straight_and_stages_may_interleave(report):
    points = [
        EpsilonPoint(stage=stage, round=number, epsilon=0.1 * release, release=release)
        for release, stage, number in [(1, "tune", 1), (2, "train", 1), (7, "evaluate", 3), (12, "train", 6)]
    ]
    figure = draw_epsilon(changed(report, epsilon_curves={"server": points}, budget=None))
    (data,) = lines_of(figure.axes[0]).values()
    assert data.tolist() == [[1, 0.1], [2, 0.2], [7, pytest.approx(0.7)], [12, pytest.approx(1.2)]]
    assert "budget" not in texts_of(figure)


def test_views_without_a_guarantee_are_named_not_drawn(report):
    views = {v: ViewReport(epsilon=math.inf if v == "server" else 2.0, bound="rdp") for v in VIEWS}
    curves = {
        v: [EpsilonPoint(stage="train", round=1, epsilon=views[v].epsilon)]
        for v in ("server", "participants")
    }
    figure = draw_epsilon(changed(report, views=views, epsilon_curves=curves))
    assert [label.split(":")[0] for label in lines_of(figure.axes[0])] == ["participants"]
    assert "no guarantee at all: server" in texts_of(figure)
    only = {"server": curves["server"]}
    assert draw_epsilon(changed(report, views=views, epsilon_curves=only)) is None
    assert draw_epsilon(changed(report, epsilon_curves={})) is None


def test_accuracy_is_drawn_in_percent_and_lost_rounds_are_marked(report):
    figure = draw_accuracy(report)
    axes = figure.axes[0]
    lines = lines_of(axes)
    rounds = [r for r in report.stages[1].rounds if r.accuracy is not None]
    assert lines["train"].tolist() == [[r.round, 100 * r.accuracy] for r in rounds]
    assert lines["train: round without a release"][:, 0].tolist() == [9]
    assert axes.get_ylabel() == "accuracy (%)" and axes.get_xlabel() == "round"
    low, high = axes.get_ylim()
    assert low >= 0 and high <= 100
    assert (
        draw_accuracy(
            changed(report, stages=[StageReport(name="a", kind="b", rounds=[RoundRecord(round=1)])])
        )
        is None
    )


def test_tallies_are_sorted_and_the_winner_stands_out(report):
    vote = report.stages[0].vote
    axes = draw_tallies(report.stages[0]).axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == sorted(vote.tallies, reverse=True)
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels[0] == "learning-rate 0.1, local-steps 5, clip-norm 1"
    colours = [bar.get_facecolor() for bar in axes.patches]
    assert colours[0] != colours[1] and len(set(colours[1:])) == 1
    assert "50 clients, 3 votes each" in axes.get_xlabel()
    assert draw_tallies(report.stages[1]) is None


def test_large_votes_show_the_best_and_the_chosen():
    vote = VoteRecord(
        candidates=[{"learning-rate": i / 100, "momentum": 0.9} for i in range(60)],
        tallies=[float(i) for i in range(60)],
        chosen=0,
        votes_per_client=1,
        voters=7,
        noise_std=0.0,
    )
    figure = draw_tallies(StageReport(name="tune", kind="vote", vote=vote))
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert len(labels) == MAX_BARS
    assert labels[0] == "learning-rate 0.59" and labels[-1] == "learning-rate 0"
    text = texts_of(figure)
    assert "36 other tallies not shown" in text
    assert "same for all: momentum 0.9" in text
    assert "no noise" in text


def test_the_files_are_pictures(report, tmp_path):
    second = report.stages[0].model_copy(update={"name": "tune again/2"})
    files = write_figures(tmp_path / "figures", changed(report, stages=[*report.stages, second]))
    assert list(files) == ["epsilon_over_rounds", "accuracy_over_rounds", "tallies", "tallies_tune-again-2"]
    for path in files.values():
        pixels = imread(path)
        assert min(pixels.shape[:2]) > 300
        assert pixels[..., :3].std() > 0.05


def test_candidates_as_text():
    assert describe_candidate({"learning-rate": 0.1, "optimizer": "sgd", "epochs": 3}) == (
        "learning-rate 0.1, optimizer sgd, epochs 3"
    )
    assert describe_candidate({"a": 1}, ["a"]) == "(no parameters)"


def test_the_picture_of_a_void_run_says_so(report):
    void = report.model_copy(update={"warnings": [SEEDED_NOISE]})
    (axes,) = draw_epsilon(void).axes
    assert axes.get_title(loc="left").startswith("NOT PRIVATE")
    (axes,) = draw_epsilon(report).axes
    assert axes.get_title(loc="left").startswith("Privacy spent")


def test_the_ticks_of_an_accuracy_are_exact(report):
    """Ticks every 2.5 % were once written as 12 %, 15 %, 18 %."""
    low = [RoundRecord(round=i, accuracy=0.1 + 0.004 * i) for i in range(1, 31)]
    stage = report.stages[1].model_copy(update={"rounds": low})
    figure = draw_accuracy(report.model_copy(update={"stages": [stage]}))
    figure.canvas.draw()
    ticks = figure.axes[0].get_yticks()
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert [float(label.rstrip("%")) for label in labels] == pytest.approx(list(ticks), abs=0.05)
