"""The names and defaults in the help of `labkit train` are those of the rooms below."""

from __future__ import annotations

from labkit import data
from labkit.cli.train import options
from labkit.comm import AGGREGATES, ALGORITHMS
from labkit.nn import MODELS
from labkit.train.experiment.presets import PRESETS
from labkit.train.experiment.settings import COMMON, RECIPES
from labkit.train.replicas import BUFFERS


def test_the_choices_are_the_names_that_exist() -> None:
    assert set(options.MODEL) == set(MODELS) == set(RECIPES)
    assert set(options.DATA) == set(data.DATASETS) and set(options.SHARD) == set(data.SCHEMES)
    assert set(options.ALGORITHM) == set(ALGORITHMS) and set(options.AGGREGATE) == set(AGGREGATES)
    assert set(options.PRESET) == set(PRESETS) and set(options.BUFFERS) == set(BUFFERS)


def test_every_setting_has_an_option() -> None:
    names = {parameter.name for parameter in options.with_options(lambda: None).__click_params__}
    settings = {*RECIPES["mlp"].settings(), *COMMON, "model"}
    assert names == {*settings, "preset", "resume", "out", "ordered"}


def test_the_help_tells_the_defaults_of_each_model() -> None:
    for name, text in options.MODELS:
        recipe = RECIPES[name]
        assert text.partition(";")[0].removesuffix(" (synthetic)").split(", ") == list(recipe.data)
        batch = f"batch {recipe.batch}" if recipe.batch else "all samples in a step"
        for words in (f"{recipe.epochs} epochs", batch, f"lr {recipe.lr:g}"):
            assert words in text
        assert ("momentum" in text) == bool(recipe.momentum) and ("augmented" in text) == recipe.augment
