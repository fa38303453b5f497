"""Netns beds that stay up after the command that made them, on this machine's own kernel, until they are taken down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from emulator.beds.docker import DockerBed
from emulator.beds.netns import NetnsBed, namespace_name
from emulator.cleaning import remove
from emulator.errors import BedError, NetworkError
from emulator.ledger import Claim, Ledger, Written, written
from emulator.network import Network, from_dict, to_dict

_PREFIX = "bed-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class _Kept(msgspec.Struct, frozen=True):
    """What the ledger of a bed says of it."""

    network: dict[str, Any]
    bed: str
    exact: bool


@dataclass(frozen=True, slots=True)
class KeptBed:
    """A bed that is up, by its name. `bed`: what its hosts are, "netns" or "docker"; a container is called as its namespace.
    `exact` is as the bed had it."""

    name: str
    network: Network
    bed: str
    exact: bool

    def namespace(self, node: str) -> str:
        """The name of a host's or switch's network namespace."""
        return namespace_name(_PREFIX + self.name, node)


def up(name: str, network: Network, bed: str = "netns", image: str = "") -> KeptBed:
    """Make a bed that nothing but `down` removes; `image` as `DockerBed` has it. Where it fails half-way, nothing is left.

    Raises:
        NetworkError: the name is none, or the network has a shape that the bed can't have.
        BedError: a bed of this name is up, or the kernel refused something.
        MachineError: this kernel or user can't make it.
    """
    if not _NAME.fullmatch(name):
        raise NetworkError(f"'{name}' is not a bed's name: expected at most 64 letters, digits, '_', '.' and '-'")
    if any(bed.name == name for bed in beds()):
        raise BedError(f"a bed called '{name}' is up already")
    with Ledger(_PREFIX + name) as own:
        made = DockerBed(network, own, image=image) if bed == "docker" else NetnsBed(network, own)
        own.keep({"network": to_dict(network), "bed": bed, "exact": made.exact})
    return KeptBed(name, network, bed, made.exact)


def beds() -> tuple[KeptBed, ...]:
    """Every bed that is up, by name."""
    return tuple(_bed(ledger) for ledger in _ledgers())


def find(name: str) -> KeptBed:
    """The bed of this name. Raises NetworkError where none is up."""
    return _bed(_ledger(name))


def down(name: str) -> tuple[Claim, ...]:
    """Take a bed down; what was removed. A process that still runs in it keeps its namespace, without name and links.

    Raises:
        NetworkError: no bed of this name is up.
    """
    return remove(_ledger(name))


def _ledgers() -> Iterator[Written]:
    return (ledger for ledger in written() if ledger.kept is not None and ledger.run_id.startswith(_PREFIX))


def _ledger(name: str) -> Written:
    found = {ledger.run_id: ledger for ledger in _ledgers()}
    if _PREFIX + name not in found:
        up = ", ".join(run_id.removeprefix(_PREFIX) for run_id in found)
        raise NetworkError(f"no bed called '{name}' is up; " + (f"there are: {up}" if up else "there is none"))
    return found[_PREFIX + name]


def _bed(ledger: Written) -> KeptBed:
    assert ledger.kept is not None
    said = msgspec.convert(ledger.kept, _Kept)
    return KeptBed(ledger.run_id.removeprefix(_PREFIX), from_dict(said.network, str(ledger.path)), said.bed, said.exact)
