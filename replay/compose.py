"""A compose file that is a bed of its own: a container a host, and one that shapes the links between them and leads the run.

Only that one has privileges, and only these: mounting and entering namespaces (SYS_ADMIN), links, routes and qdiscs (NET_ADMIN),
writing the run folder whoever owns it and leaving it to them (DAC_OVERRIDE, CHOWN). AppArmor's profile for containers forbids
mounting. No container has a Docker network: the ranks hand their namespaces over (`replay.muster`), and wires join these.

The file is for docker-compose 1.29 and for the Compose specification alike, so it names no version and no project; the
project's name, which must be another for each folder, is in `.env`, which both read.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import yaml

from emulator.errors import NetworkError
from emulator.network import Network, to_dict
from replay.grounds import ENVIRONMENT
from replay.muster import MEETING
from replay.request import Request
from replay.session import Job, plain_name
from traces.errors import TraceError

FILE = "docker-compose.yml"
COORDINATOR = "tracebed"
FOLDER = Path("/tracebed")
"""Where the containers find what their service mounts."""
REQUEST, RUNS = "request.json", "runs"
_PROGRAM = ["python", "-m", "replay.cli.composed"]
_NOBODY = "65534:65534"
_CAPABILITIES = ["SYS_ADMIN", "NET_ADMIN", "DAC_OVERRIDE", "CHOWN"]
_HEADER = """\
# Written by tracebed compose. `docker-compose up` here replays {trace} on {network}
# and leaves a run folder in {runs}; all containers then exit with 0, or with another status where the run failed.
"""


def services(network: Network, ranks: Collection[int], image: str, trace: str) -> dict[str, Any]:
    """The services by name, as a compose file has them: the coordinator, and one for each host that has a rank.

    `trace`: the file's name, beside the compose file.

    Raises:
        NetworkError: a host is called as the coordinator.
    """
    found: dict[str, Any] = {
        COORDINATOR: {
            **_service(image, trace),
            "command": _PROGRAM,
            "user": "0:0",
            "cap_add": _CAPABILITIES,
            "security_opt": ["apparmor:unconfined"],
            "tmpfs": ["/run", "/tmp"],
        }
    }
    found[COORDINATOR]["volumes"].append(_mount(RUNS, read_only=False))
    for host in network.hosts:
        here = [str(rank) for rank in host.ranks if rank in ranks]
        if host.name == COORDINATOR:
            raise NetworkError(f"'{COORDINATOR}' is what the service is called that leads the run", key="hosts")
        if here:
            found[host.name] = {
                **_service(image, trace),
                "command": [*_PROGRAM, *here],
                "user": _NOBODY,
                "depends_on": [COORDINATOR],
            }
    return found


def _service(image: str, trace: str) -> dict[str, Any]:
    meeting = {"type": "volume", "source": "meeting", "target": str(MEETING.parent)}
    return {
        "image": image,
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "read_only": True,
        "environment": dict(ENVIRONMENT),
        "volumes": [_mount(REQUEST), _mount(trace), meeting],
    }


def _mount(name: str, *, read_only: bool = True) -> dict[str, Any]:
    return {"type": "bind", "source": f"./{name}", "target": str(FOLDER / name), "read_only": read_only}


def write(
    folder: Path, job: Job, network: Network, image: str, fidelity: str = "auto", verify: bool = False
) -> tuple[str, ...]:
    """Make `folder`, and in it the compose file and all that it mounts. Returns the services' names.

    Raises:
        TraceError: the folder is there and not empty.
        NetworkError: as `services` does.
    """
    trace = plain_name(job.path.name)
    parts = services(network, job.trace.programs, image, trace)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise TraceError(f"{folder} is not empty", mend="name another folder with -o")
    request = Request(
        trace=str(FOLDER / trace),
        trace_hash=job.trace_hash,
        network=to_dict(network),
        what_if=job.what_if,
        steps=job.steps,
        ground="host",
        bed="compose",
        fidelity=fidelity,
        verify=verify,
    )
    (folder / REQUEST).write_bytes(msgspec.json.format(msgspec.json.encode(request), indent=1) + b"\n")
    shutil.copyfile(job.path, folder / trace)
    for mounted in (REQUEST, trace):
        (folder / mounted).chmod(0o644)  # the ranks are nobody
    (folder / RUNS).mkdir()
    header = _HEADER.format(trace=trace, network=network.name, runs=f"{RUNS}/")
    text = yaml.safe_dump({"services": parts, "volumes": {"meeting": None}}, sort_keys=False)
    (folder / FILE).write_text(header + text)
    (folder / ".env").write_text(f"COMPOSE_PROJECT_NAME={_project(folder.resolve())}\n")
    return tuple(parts)


def _project(folder: Path) -> str:
    """A project's name of small letters, digits and '-', another for each folder."""
    return f"tracebed-{hashlib.sha256(bytes(folder)).hexdigest()[:12]}"
