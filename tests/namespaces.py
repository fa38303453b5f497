"""A network namespace for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from emulator.ledger import Ledger
from emulator.namespace import Namespace, inside


@contextmanager
def fresh_namespace(name: str) -> Iterator[None]:
    """Run a block of code of this thread in a new namespace, which is gone afterwards.

    Made as the emulator makes them: pyroute2's own `create` and `netns=` fork this process, and behind other tests their child
    makes nothing and says nothing.
    """
    with Ledger(name) as ledger, closing(Namespace(name, ledger)), inside(name):
        yield
