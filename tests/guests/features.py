"""Asks the lab kernel for everything its users count on; what it refuses, with what it said."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.guests.pair import report

DEVICES = {
    "dummy": "type dummy",
    "veth": "type veth peer name peer0",
    "bridge": "type bridge",
    "ifb": "type ifb",
    "vxlan": "type vxlan id 7 dstport 4789 local 127.0.0.1",
    "vlan": "link dummy7 type vlan id 7",
}
QDISCS = (
    "netem delay 1ms",
    "tbf rate 1gbit burst 10000 limit 100000",
    "htb",
    "red limit 1000000 min 30000 max 35000 avpkt 1500 burst 20 bandwidth 10mbit ecn",
    "fq",
    "fq_codel",
    "prio",
    "ets bands 4 strict 1",
)
FILTERS = (
    "u32 match u32 0 0",
    "matchall",
    "flower dst_mac 02:00:00:00:00:01",
)
REDIRECT = "action mirred egress redirect dev ifb7"
FILES = {
    "/proc/filesystems": ("overlay", "mqueue", "cgroup2", "tmpfs", "hostfs"),
    "/proc/misc": ("tun",),
    "/proc/sys/net/ipv4/tcp_available_congestion_control": ("cubic", "reno", "dctcp", "bbr"),
    "/proc/self/status": ("Seccomp",),
    "/proc/self/cgroup": ("0::/",),
    "/sys/fs/cgroup/cgroup.controllers": ("cpu", "memory", "pids"),
    "/proc/key-users": ("0:",),
}
NAMESPACES = ("net", "mnt", "pid", "ipc", "uts", "user", "cgroup")


def refused(command: str) -> list[str]:
    """[] where the command succeeds."""
    done = subprocess.run(command.split(), capture_output=True, text=True)
    return [] if done.returncode == 0 else [f"{command}: {done.stderr.strip()}"]


if __name__ == "__main__":
    missing = []
    for name, how in DEVICES.items():
        missing += refused(f"ip link add {name}7 {how}")
    for qdisc in QDISCS:
        missing += refused(f"tc qdisc replace dev dummy7 root {qdisc}")
    missing += refused("tc qdisc add dev dummy7 ingress")
    for number, kind in enumerate(FILTERS, start=1):
        missing += refused(f"tc filter add dev dummy7 ingress prio {number} protocol all {kind} {REDIRECT}")
    for file, words in FILES.items():
        text = Path(file).read_text()
        missing += [f"{file}: no {word}" for word in words if word not in text]
    missing += [f"no {name} namespace" for name in NAMESPACES if not Path(f"/proc/self/ns/{name}").exists()]
    report(missing)
