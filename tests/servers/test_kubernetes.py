"""examples/kubernetes.yaml: values that the chart of Zero to JupyterHub takes.

chart.json holds the chart's schema, against which Helm checks values, and the chart's own values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from labkit import __version__

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "examples/kubernetes.yaml").read_text()
VALUES = yaml.safe_load(TEXT)
CHART = json.loads(Path(__file__).with_name("chart.json").read_text())
UNITS = {"M": 1e6, "Mi": 2**20, "G": 1e9, "Gi": 2**30}


def merged(below: Any, above: Any) -> Any:
    """Return what Helm makes of a chart's values and those that override them."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    together = {**below}
    for name, value in above.items():
        together[name] = merged(below[name], value) if name in below else value
    return together


def complaints(values: Any) -> Iterator[str]:
    """Yield what the chart's schema refuses in values."""
    for error in Draft7Validator(CHART["schema"]).iter_errors(merged(CHART["values"], values)):
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message}"


def size(text: str) -> float:
    """Return the bytes of a quantity such as "256Mi"."""
    number, unit = re.fullmatch(r"([\d.]+)(\w*)", text).groups()  # type: ignore[union-attr]
    return float(number) * UNITS[unit]


def test_the_chart_takes_the_values() -> None:
    assert [*complaints(VALUES)] == []


@pytest.mark.parametrize(
    "wrong", [{"singleuser": {"memory": {"limits": "2G"}}}, {"cull": {"timeout": "2 hours"}}, {"culling": {}}]
)
def test_a_misspelt_value_would_be_seen(wrong: dict[str, Any]) -> None:
    assert [*complaints(merged(VALUES, wrong))]


def test_shared_memory_is_enough_and_within_the_limit() -> None:
    student = VALUES["singleuser"]
    (volume,) = student["storage"]["extraVolumes"]
    (mount,) = student["storage"]["extraVolumeMounts"]
    assert volume["name"] == mount["name"] and mount["mountPath"] == "/dev/shm"
    shared = size(volume["emptyDir"]["sizeLimit"])
    assert 64 * 2**20 < shared < size(student["memory"]["limit"]) / 2
    assert size(student["memory"]["guarantee"]) <= size(student["memory"]["limit"])


def test_the_image_is_the_dockerfiles_with_the_charts_jupyterhub() -> None:
    assert VALUES["singleuser"]["image"]["tag"] == __version__
    (version,) = re.findall(r"^ARG JUPYTERHUB=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert version == CHART["jupyterhub"]


def test_idle_kernels_and_servers_end_as_on_one_server() -> None:
    example = (ROOT / "examples/jupyterhub_config.py").read_text()
    kernels = VALUES["singleuser"]["extraFiles"]["idle-kernels"]["data"]["MappingKernelManager"]
    for name, value in kernels.items():
        assert f"--MappingKernelManager.{name}={value}" in example
    assert f"--timeout={VALUES['cull']['timeout']}" in example
