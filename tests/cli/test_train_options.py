"""The names and options of `labkit train` are those of the packages below."""

from __future__ import annotations

from dataclasses import fields

from labkit import data
from labkit.cli.train import command
from labkit.comm import AGGREGATES
from labkit.nn import MODELS
from labkit.train import settings
from labkit.train.run import AUGMENTATIONS
from labkit.train.settings import RECIPES, Settings


def test_the_choices_are_the_names_that_exist() -> None:
    assert set(RECIPES) == set(MODELS) and set(settings.DATA) == set(data.DATASETS)
    assert {name for recipe in RECIPES.values() for name in recipe.datasets} == set(settings.DATA)
    assert {name for recipe in RECIPES.values() if recipe.shape for name in recipe.datasets} == set(
        AUGMENTATIONS
    )
    assert data.SCHEMES == settings.SHARDS
    assert settings.AGGREGATES == AGGREGATES


def test_every_setting_has_an_option() -> None:
    names = {parameter.name for parameter in command.params}
    assert names == {*(each.name for each in fields(Settings)), "preset", "resume", "out", "hosts"}
