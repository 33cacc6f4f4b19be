"""Aliases of fields, outputs and blocks in errors."""

import pytest

from service.base.aliases import ALIASES, OUTPUTS_AND_BLOCKS, field_hint, is_no_op, name_hint


def test_only_accepted_names_are_suggested():
    for name, alias in ALIASES.items():
        assert "did you mean" not in field_hint(name, ())
        for field in alias.fields:
            assert f"did you mean '{field}'?" in field_hint(name, [field])
    for name, aliases in OUTPUTS_AND_BLOCKS.items():
        for alias in aliases.split():
            assert name_hint(alias, [name]) == f"; did you mean '{name}'?"
            assert name_hint(alias, []) == ""
    assert name_hint("Flash-Attention", ["scaled_dot_product"]) == "; did you mean 'scaled_dot_product'?"


def test_an_alias_of_a_request_that_generates_is_not_explained_as_one_of_texts():
    assert field_hint("max_tokens", ["text", "max_new_tokens", "next_tokens"]) == "; did you mean 'max_new_tokens'?"
    assert "POST /v1/generate" in field_hint("max_tokens", ["text", "next_tokens"])
    assert field_hint("max_length", ["max_new_tokens", "truncation"]) == "; did you mean 'max_new_tokens'?"
    assert "truncation true" in field_hint("max_length", ["truncation"])


@pytest.mark.parametrize("value", [True, False, 0, 0.0, 0.1, 1, "", "longest", None])
def test_values_of_aliases_that_change_nothing(value):
    taken = {name for name in ALIASES if is_no_op(name, value, {"groups_heads": False, "answers_weights": False})}
    if value is None:
        assert taken == set(ALIASES)
    else:
        zero = type(value) in (int, float) and value == 0
        assert ("dropout_p" in taken) == zero
        assert ("enable_gqa" in taken) == ("training" in taken) == (value is False)
        assert ("return_dict" in taken) == (value is True)
        assert ("padding" in taken) == (value is True or value == "longest")
        assert "need_weights" not in taken
        assert "query" not in taken
