"""The docker bed: each host is a container; switches, and the wires between all, are as in a netns bed.

Nothing in a container does any of it: wires are put into its network namespace from outside and shaped there, so it needs
neither a capability nor a program.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from emulator.beds.netns import NetnsBed, namespace_name
from emulator.containers import Container, EmptyImage
from emulator.ledger import Ledger
from emulator.network import Network
from emulator.shaping import Fidelity


class DockerBed(NetnsBed):
    """A network whose hosts are containers of the daemon that DOCKER_HOST names, up from the moment it is made.

    `image`: what the containers are made of; "" is an empty one. A process that enters a host sees the files of the image.

    Raises:
        NetworkError: there is no such image; or as `NetnsBed`.
        MachineError: no daemon answers, or not one of this machine; or as `NetnsBed`.
        BedError: Docker refused something; or as `NetnsBed`.
    """

    def __init__(self, network: Network, ledger: Ledger, fidelity: Fidelity | None = None, image: str = "") -> None:
        with ExitStack() as guards:
            self._containers: dict[str, Container] = {}
            if not image:
                empty = EmptyImage(ledger)
                guards.callback(empty.close)
                image = empty.name
            for host in (host.name for host in network.hosts):
                container = Container(namespace_name(ledger.run_id, host), host, image, ledger)
                guards.callback(container.close)
                self._containers[host] = container
            theirs = {host: Path(f"/proc/{container.pid}/ns/net") for host, container in self._containers.items()}
            super().__init__(network, ledger, fidelity, theirs)
            self._own = guards.pop_all()

    def enter(self, host: str) -> None:
        """As every bed's. What the process imports or opens from then on has to be in the image."""
        self._containers[host].enter()

    def close(self) -> None:
        super().close()
        self._own.close()
