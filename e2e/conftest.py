"""Fixtures of the end-to-end tests: a cluster, a namespace in it, the CRD, and the operator installed by helm."""

import os
import re
import secrets
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from e2e.cluster import DEFAULT_NAME, Cluster, NoCluster, find, is_up
from e2e.support import chart
from e2e.support.diagnostics import dump_namespace
from e2e.support.images import REPOSITORY, Images
from e2e.support.images import images as image_references
from e2e.support.namespaces import OF_A_TEST, discard_namespace, wait_for_discarded
from e2e.support.namespaces import make_namespace as make_namespace
from e2e.support.waiting import until_served

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember failures, so that the namespace fixture can save what led to them."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster that ``python -m e2e`` brought up; at the end all namespaces of tests must be gone."""
    try:
        found = find(os.environ.get("E2E_CLUSTER", DEFAULT_NAME))
    except NoCluster as error:
        pytest.skip(str(error))
    if not is_up(found):
        pytest.skip("no cluster is up: run `make e2e`, or `python -m e2e.cluster up` (docs/e2e.md)")
    yield found
    wait_for_discarded(found)


@pytest.fixture(scope="session")
def images() -> Images:
    """The image references the tests use."""
    return image_references()


@pytest.fixture(scope="session")
def crd(cluster: Cluster) -> None:
    """Our kinds, ready for use."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(REPOSITORY / "crds"))
    kinds = "llmservices.serving.bladellm.io", "loraadapters.serving.bladellm.io"
    until_served(cluster, *kinds)


@pytest.fixture(scope="session")
def operator(cluster: Cluster, crd: None, images: Images) -> str:
    """The operator, installed by helm from the real chart with the real images; its namespace."""
    make_namespace(cluster, chart.NAMESPACE)
    chart.install(cluster, images)
    return chart.NAMESPACE


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh restricted namespace; when the test failed, what was in it is saved before it is deleted."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))[:36].strip("-")
    name = f"{test}-{secrets.token_hex(4)}"
    make_namespace(cluster, name, **{OF_A_TEST: "true"})
    yield name
    folder = os.environ.get("E2E_DIAGNOSTICS")
    if request.node.stash.get(FAILED, False) and folder:
        dump_namespace(cluster, name, Path(folder) / name)
    discard_namespace(cluster, name)
