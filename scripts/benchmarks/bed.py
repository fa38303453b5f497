"""256 shaped hosts in network namespaces: up, probed, down; and Mininet 2.3's, in turns, in the same run.

Both shape every link with tbf to 100 Mbit/s each way, which any kernel can; where there is netem, ours takes that as well, as
it always does. Mininet runs as its own users run it: Python's API, TCLink(use_tbf), a Linux bridge. Down is over when the
kernel has no device of the network left. Prints milliseconds a host, and the ratio.
"""

# Debian packages: iproute2 ethtool mininet bridge-utils net-tools telnet iputils-ping
from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from emulator.beds.netns import NetnsBed
from emulator.ledger import Ledger
from emulator.measure import survey
from emulator.network import Network, from_dict
from emulator.probe import HOST, Report

MININET = """
import sys, time
from functools import partial
from mininet.link import TCLink
from mininet.net import Mininet
from mininet.nodelib import LinuxBridge
from mininet.topo import SingleSwitchTopo

began = time.monotonic()
net = Mininet(SingleSwitchTopo(int(sys.argv[1])), switch=LinuxBridge, controller=None, link=partial(TCLink, bw=100, use_tbf=True))
net.start()
up = time.monotonic()
net.stop()
print(up - began, time.monotonic() - up)
"""
SYSTEM_PYTHON = "/usr/bin/python3"  # Debian's, which Debian's Mininet is installed for


def star(hosts: int) -> Network:
    return from_dict({"topology": {"star": {"hosts": str(hosts)}}, "link": {"rate": "100 mbit", "queue": "200 kB"}})


def ours(network: Network) -> tuple[float, float, float, tuple[Report, ...]]:
    """Seconds for up, probe and down, and what the probe found."""
    with Ledger(f"bench-{time.monotonic_ns():x}") as own:
        began = time.monotonic()
        bed = NetnsBed(network, own)
        up = time.monotonic()
        reports = tuple(survey(network, bed.namespace, HOST))
        probed = time.monotonic()
        bed.close()
    return up - began, probed - up, time.monotonic() - probed, reports


def mininets(hosts: int) -> tuple[float, float]:
    """Seconds for up and down."""
    done = subprocess.run(
        [SYSTEM_PYTHON, "-c", MININET, str(hosts)], capture_output=True, text=True, check=True, cwd="/"
    )
    up, down = done.stdout.split()[-2:]
    return float(up), float(down)


def traces_of_beds() -> set[str]:
    """Every device and every named namespace of this machine."""
    devices = {path.name for path in Path("/sys/class/net").iterdir()}
    return devices | {path.name for path in Path("/run/netns").glob("*")}


def waited(condition: Callable[[], bool], limit_s: float = 60) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            sys.exit(f"something is left: {sorted(traces_of_beds())}")
        time.sleep(0.01)
    return time.monotonic() - began


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--hosts", type=int, default=256, help="of our bed (default: 256)")
    options.add_argument("--mininet-hosts", type=int, default=64, help="of Mininet's (default: 64)")
    options.add_argument("--rounds", type=int, default=3, help="of both, in turns (default: 3)")
    chosen = options.parse_args()
    before, network = traces_of_beds(), star(chosen.hosts)
    times: dict[str, list[float]] = {name: [] for name in ("ours up", "ours down", "mininet up", "mininet down")}
    for number in range(chosen.rounds):
        up, probe, down, reports = ours(network)
        down += waited(lambda: traces_of_beds() == before)
        wrong = sum(not report.holds() for report in reports)
        print(
            f"round {number + 1}: {chosen.hosts} hosts up {up:.2f} s, probed {probe:.2f} s, down {down:.2f} s; ", end=""
        )
        print(f"paths otherwise than asked: {wrong} of {len(reports)}", flush=True)
        for report in reports:
            for finding in report.findings:
                if finding.verdict == "no":
                    path = f"{report.source} -> {report.target}"
                    print(f"         {path}: {finding.what}: asked {finding.asked:g}, got {finding.got}", flush=True)
        for name, seconds in (("ours up", up), ("ours down", down)):
            times[name].append(1e3 * seconds / chosen.hosts)
        up, down = mininets(chosen.mininet_hosts)
        down += waited(lambda: traces_of_beds() == before)
        print(f"         Mininet, {chosen.mininet_hosts} hosts: up {up:.2f} s, down {down:.2f} s", flush=True)
        for name, seconds in (("mininet up", up), ("mininet down", down)):
            times[name].append(1e3 * seconds / chosen.mininet_hosts)
    found = {name: median(values) for name, values in times.items()}
    print(f"\n{'ms a shaped host':<18}{'up':>8}{'down':>8}{'both':>8}")
    for who in ("ours", "mininet"):
        up, down = found[f"{who} up"], found[f"{who} down"]
        print(f"{who:<18}{up:>8.1f}{down:>8.1f}{up + down:>8.1f}")
    both = [found[f"{who} up"] + found[f"{who} down"] for who in ("mininet", "ours")]
    print(f"ours is {both[0] / both[1]:.1f} times as fast; nothing is left")


if __name__ == "__main__":
    main()
