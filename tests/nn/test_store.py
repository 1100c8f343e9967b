"""Models in files, copies and pickles."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from labkit.nn import Model, lenet5, load_model, mlp, mnist_cnn, save_model
from tests.nn.test_models import batch, small


def test_a_pickle_holds_no_workspace_and_no_activations() -> None:
    model = mnist_cnn()
    before = len(pickle.dumps(model))
    model.loss_and_gradient(*batch(model, 16))
    assert len(pickle.dumps(model)) == pytest.approx(before, rel=0.01)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_complete_and_independent(duplicate: Callable[[Model], Model]) -> None:
    model = small()
    x, y = batch(model)
    model.loss_and_gradient(x, y)
    other = duplicate(model)
    np.testing.assert_array_equal(other.forward(x), model.forward(x))
    assert other.loss_and_gradient(x, y) == model.loss_and_gradient(x, y)
    np.testing.assert_array_equal(other.grads, model.grads)
    other.params[...] = 0
    assert model.params.any() and not other.forward(x).any()


def test_a_saved_model_loads_into_another(tmp_path: Path) -> None:
    model, other = small(seed=1), small(seed=2)
    model.loss_and_gradient(*batch(model))
    save_model(model, tmp_path / "model.npz")
    load_model(other, tmp_path / "model.npz")
    np.testing.assert_array_equal(other.params, model.params)
    np.testing.assert_array_equal(other.buffers, model.buffers)
    x, _ = batch(model)
    np.testing.assert_array_equal(other.forward(x), model.forward(x))


def test_a_file_of_another_model_is_refused_with_the_layer(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    save_model(mlp(hidden=32), path)
    model = mlp()
    before = model.params.copy()
    with pytest.raises(ValueError, match=r"layer 'dense1'.*\(64, 32\).*\(64, 64\)"):
        load_model(model, path)
    with pytest.raises(ValueError, match=r"layer 'conv1'.*holds no conv1.W.*\(5, 5, 1, 6\)"):
        load_model(lenet5(), path)
    named = dict(np.load(path)) | {"dense1.W": np.zeros((64, 64)), "dense1.b": np.zeros(64)}
    np.savez(path, **(named | {"dense2.W": np.zeros((64, 10)), "extra.W": np.zeros(2)}))
    with pytest.raises(ValueError, match=r"layer 'extra'.*\(2,\).*no such layer"):
        load_model(model, path)
    path.write_text("not a model")
    with pytest.raises(ValueError, match="is damaged, or not an"):
        load_model(model, path)
    np.testing.assert_array_equal(model.params, before)
