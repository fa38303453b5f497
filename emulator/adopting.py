"""Containers that somebody else started: found, held against a network's hosts, and followed to where their cables end.

They need no capabilities and are not entered; their ports are asked by netlink through their process's namespace.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emulator.containers import connected, process_of
from emulator.errors import BedError, MachineError, NetworkError
from emulator.namespace import inside

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container
    from pyroute2 import IPRoute

_LABELS = "com.docker.compose."
_NO_TRAFFIC = "com.docker.network.bridge.enable_icc"


@dataclass(frozen=True, slots=True)
class Running:
    """A container that runs. `service` and `number` are compose's, "" and 0 where it is not compose's. `networks`: the
    hardware address of its port on each of its Docker networks, by their names."""

    name: str
    pid: int
    service: str
    number: int
    networks: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cable:
    """A container's port on a Docker network: the end that is on this machine, and the addresses behind it."""

    container: str
    index: int
    device: str
    mtu: int
    addresses: tuple[str, ...]


def of_project(address: str, project: str) -> tuple[Running, ...]:
    """The containers of a compose project, by service and number, without those of `docker-compose run`.

    Raises:
        NetworkError: none of them runs.
        MachineError, BedError: as `emulator.containers.connected`.
    """
    with connected(address) as client:
        found = client.containers.list(filters={"label": f"{_LABELS}project={project}"})
        running = [_running(each, address) for each in found if each.labels.get(f"{_LABELS}oneoff") != "True"]
    if not running:
        raise NetworkError(
            f"no container of the compose project '{project}' runs at {address}; docker ps shows those that do"
        )
    return tuple(sorted(running, key=lambda each: (each.service, each.number)))


def of_names(address: str, names: Sequence[str]) -> tuple[Running, ...]:
    """The containers of these names or ids, in this order.

    Raises:
        NetworkError: there is none of a name, it doesn't run, or it is named twice.
        MachineError, BedError: as `emulator.containers.connected`.
    """
    from docker.errors import NotFound

    running = []
    with connected(address) as client:
        for name in names:
            try:
                container = client.containers.get(name)
            except NotFound:
                raise NetworkError(f"there is no container '{name}' at {address}") from None
            if container.status != "running":
                raise NetworkError(f"container '{name}' is {container.status}: expected one that runs")
            running.append(_running(container, address))
    if len({each.name for each in running}) < len(running):
        raise NetworkError(f"a container is named twice: {', '.join(names)}")
    return tuple(running)


def _running(container: Container, address: str) -> Running:
    ports = container.attrs["NetworkSettings"]["Networks"]
    return Running(
        name=str(container.name),
        pid=process_of(container, address),
        service=container.labels.get(f"{_LABELS}service", ""),
        number=int(container.labels.get(f"{_LABELS}container-number", 0)),
        networks={name: port["MacAddress"] for name, port in ports.items() if port["MacAddress"]},
    )


def match(hosts: Sequence[str], running: Sequence[Running], chosen: Mapping[str, str]) -> dict[str, Running]:
    """The container that is each host.

    `chosen` names the host of a container, for all or for none. Otherwise a host is the container of the service that is
    called like it (`worker-2` or `worker_2` the second of a scaled service), or of that name itself; what else runs is left
    alone. Where no host is called like any of them, they are matched in order, and must be equally many.

    Raises NetworkError, which lists both sides.
    """
    sides = f"the containers are {_list([each.name for each in running])}, the network's hosts {_list(hosts)}"
    if chosen:
        if sorted(chosen) != sorted(each.name for each in running) or sorted(chosen.values()) != sorted(hosts):
            raise NetworkError(f"expected each container with one host, and each host once: {sides}")
        return {chosen[each.name]: each for each in running}
    called = _names(running)
    named = {host: called[host] for host in hosts if host in called}
    if len(named) == len(hosts):
        return named
    if named:
        absent = [host for host in hosts if host not in named]
        raise NetworkError(f"no container is called like {_list(absent)}: {sides}")
    if len(running) != len(hosts):
        raise NetworkError(f"{len(running)} containers can't be {len(hosts)} hosts: {sides}")
    return dict(zip(hosts, running, strict=True))


def _names(running: Sequence[Running]) -> dict[str, Running]:
    called = {each.name: each for each in running}
    for each in running:
        if each.service:
            called[f"{each.service}-{each.number}"] = called[f"{each.service}_{each.number}"] = each
            if sum(other.service == each.service for other in running) == 1:
                called[each.service] = each
    return called


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def shared_network(address: str, running: Sequence[Running], asked: str | None) -> str:
    """The Docker network that joins all these containers.

    Raises:
        NetworkError: none does, or several do and none was asked for, or it isn't a bridge, or keeps them apart.
        MachineError, BedError: as `emulator.containers.connected`.
    """
    joining = [name for name in running[0].networks if all(name in each.networks for each in running)]
    if asked is not None:
        joining = [name for name in joining if name == asked]
    if len(joining) != 1:
        on = "; ".join(f"{each.name} is on {_list(sorted(each.networks))}" for each in running)
        what = f"'{asked}' doesn't join" if asked else f"{len(joining) or 'none'} of their Docker networks join"
        raise NetworkError(f"{what} all the containers, expected one that does (--docker-network): {on}")
    with connected(address) as client:
        _check_bridge(client, joining[0])
    return joining[0]


def _check_bridge(client: DockerClient, name: str) -> None:
    attributes = client.networks.get(name).attrs
    if attributes["Driver"] != "bridge":
        raise NetworkError(f"the Docker network '{name}' is of kind {attributes['Driver']}, expected a bridge")
    if attributes["Options"].get(_NO_TRAFFIC) == "false":
        raise NetworkError(
            f"the Docker network '{name}' keeps its containers apart ({_NO_TRAFFIC}): there is nothing to shape"
        )


def cable(running: Running, docker_network: str) -> Cable:
    """The container's port on this Docker network.

    Raises:
        BedError: it has no such port any more.
        MachineError: the other end of its cable is not in the network namespace of this process, or this user is not root.
    """
    from pyroute2 import IPRoute

    if os.geteuid() != 0:
        raise MachineError("only root can look into a container's network namespace", mend="run as root")
    hardware = running.networks[docker_network]
    with IPRoute() as ipr, inside(f"/proc/{running.pid}/ns/net"), IPRoute() as inner:
        ports = [port for port in inner.get_links() if port.get_attr("IFLA_ADDRESS") == hardware]
        if not ports:
            raise BedError(f"container {running.name} has no port with the address {hardware} of '{docker_network}'")
        port = ports[0]
        addresses = [each.get_attr("IFA_ADDRESS") for each in inner.get_addr(index=port["index"])]
        index = port.get_attr("IFLA_LINK")
        device = _other_end(ipr, index, port["index"], running.pid)
    if device is None:
        raise MachineError(
            f"the cable of container {running.name} doesn't end in this network namespace",
            mend="run it where the Docker daemon runs, as root",
        )
    return Cable(running.name, index, device, int(port.get_attr("IFLA_MTU")), tuple(addresses))


def _other_end(ipr: IPRoute, index: int | None, port: int, pid: int) -> str | None:
    """The name of the device of this index, if it is the other end of the port `port` of that process's namespace."""
    theirs = ipr.get_netnsid(pid=pid)["nsid"]
    for message in ipr.get_links():
        found = (message["index"], message.get_attr("IFLA_LINK"), message.get_attr("IFLA_LINK_NETNSID"))
        if found == (index, port, theirs):
            return str(message.get_attr("IFLA_IFNAME"))
    return None
