"""Fixtures of the emulator's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.namespaces import fresh_namespace

if TYPE_CHECKING:
    from pyroute2 import IPRoute


@pytest.fixture
def netns_root(root: None) -> Iterator[IPRoute]:
    """Netlink into a fresh network namespace, which is gone afterwards."""
    from pyroute2 import IPRoute

    with fresh_namespace(f"tracebed-test-{os.getpid()}"), IPRoute() as ipr:
        yield ipr
