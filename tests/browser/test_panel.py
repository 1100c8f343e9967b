"""JupyterLab's cluster panel: it lists a notebook's ranks and starts others, which `connect()` finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.jupyterlab import CONNECT, Lab, open_notebook

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


def test_connect_finds_a_cluster_that_the_panel_has_started(lab: Lab, page: Page) -> None:
    two = CONNECT.replace("n=4", "n=2")
    cells = [CONNECT, two, "%px print(comm.allreduce(1))", "%px print(comm.allreduce(2))"]
    notebook = open_notebook(lab, page, lab.write("panel.ipynb", *cells))
    notebook.run(0)
    page.locator("[role=tab][data-id=ipp-cluster-launcher]").click()
    clusters = page.locator(".ipp-ClusterListingItem")
    clusters.filter(has_text="default:notebook-").filter(has_text="Number of engines: 4").wait_for()

    page.locator(".ipp-Sidebar, #ipp-cluster-launcher").get_by_text("NEW", exact=True).click()
    dialog = page.locator(".jp-Dialog")
    dialog.locator(".ipp-DialogSection-item", has_text="Cluster ID").locator("input").fill("mine")
    dialog.locator(".ipp-DialogSection-item", has_text="Engines").locator("input").fill("2")
    dialog.locator(".jp-mod-accept").click()
    mine = clusters.filter(has_text="default:mine")
    mine.locator(".ipp-ClusterListingItem-start").click()
    mine.filter(has_text="State: running").filter(has_text="Number of engines: 2").wait_for()

    assert "connected to the running cluster mine, up since" in notebook.run(1)
    assert notebook.run(2) == "[ranks 0, 1] 2\n"

    mine.get_by_text("STOP", exact=True).click()
    page.locator(".ipp-ClusterListingItem", has_text="default:mine").filter(
        has_text="State: running"
    ).wait_for(state="detached")
    assert "as after STOP in JupyterLab's cluster panel" in notebook.run(3)
