"""The words are the strings that go through configurations, ledgers and reports."""

from fedpriv.accounting.vocabulary import ADJACENCIES, UNITS, VIEWS


def test_words():
    assert VIEWS == ("server", "participants", "release")
    assert ADJACENCIES == ("add_or_remove", "replace_one")
    assert UNITS == ("client", "record")
