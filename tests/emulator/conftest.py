"""Fixtures of the emulator's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from emulator.ledger import Ledger
from emulator.namespace import Namespace, inside

if TYPE_CHECKING:
    from pyroute2 import IPRoute


@pytest.fixture
def netns_root(root: None) -> Iterator[IPRoute]:
    """Netlink into a fresh network namespace, which is gone afterwards."""
    from pyroute2 import IPRoute

    name = f"tracebed-test-{os.getpid()}"
    with Ledger(name) as ledger, closing(Namespace(name, ledger)):
        # Not pyroute2's own create and netns=: they fork this process, and behind other tests their child makes nothing and
        # says nothing.
        with inside(name):
            ipr = IPRoute()
        with ipr:
            yield ipr
