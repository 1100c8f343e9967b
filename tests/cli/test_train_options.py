"""The names and options of `labkit train` are those of the rooms below."""

from __future__ import annotations

from dataclasses import fields

from click.testing import CliRunner

from labkit import cli, data
from labkit.cli.train import command
from labkit.comm import AGGREGATES, ALGORITHMS
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
    assert tuple(ALGORITHMS) == settings.ALGORITHMS and settings.AGGREGATES == AGGREGATES


def test_every_setting_has_an_option() -> None:
    names = {parameter.name for parameter in command.params if not getattr(parameter, "hidden", False)}
    assert names == {*(each.name for each in fields(Settings)), "preset", "resume", "out", "hosts"}


def test_a_command_of_an_older_record_is_still_understood() -> None:
    answer = CliRunner().invoke(cli.main, ["train", "--optimizer", "sgd", "--ordered"])
    assert "Missing option '--out'" in answer.output and "No such option" not in answer.output
