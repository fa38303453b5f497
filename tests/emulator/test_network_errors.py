"""What a user can get wrong in a network file, and the one line that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.errors import NetworkError
from emulator.network import load

WRONG = {
    "unknown key": (
        "link:\n  rate: 1 gbit\n  dealy: 5 us\n",
        "line 3, link.dealy: unknown key 'dealy': did you mean 'delay'?",
    ),
    "unknown top key": (
        "profile: ethernet-1g\nhappenings: []\n",
        "line 2, happenings: unknown key 'happenings': expected one of",
    ),
    "key twice": ("link: {rate: 1 gbit}\nlink: {rate: 2 gbit}\n", "line 2, link: key 'link' is given twice"),
    "rate 0": ("link:\n  rate: 0 gbit\n", "line 2, link.rate: rate 0 bit: expected a whole number of bytes a second"),
    "rate of half a byte": ("link: {rate: 12 bit}\n", "line 1, link.rate: rate 12 bit: expected a whole number"),
    "rate without unit": ("link: {rate: 10}\n", "line 1, link.rate: '10' is not a rate: write a number and one of bit"),
    "no rate": ("link: {delay: 1 us}\n", "link 'host0' has no rate"),
    "empty file": ("", "link 'host0' has no rate"),
    "negative delay": ("link:\n  rate: 1 gbit\n  delay: -5us\n", "line 3, link.delay: '-5us' is negative"),
    "delay finer than 1 ns": ("link: {rate: 1 gbit, delay: 0.3 ns}\n", "link.delay: '0.3 ns' is finer than 1 ns"),
    "jitter above delay": (
        "link: {rate: 1 gbit, delay: 1 us, jitter: 2 us}\n",
        "link.jitter: jitter 2 us is more than the delay 1 us",
    ),
    "jitter above the kernel's": (
        "link: {rate: 1 gbit, delay: 5 s, jitter: 3 s}\n",
        "link.jitter: jitter 3 s is more than the kernel takes",
    ),
    "unknown distribution": (
        "link: {rate: 1 gbit, distribution: gauss}\n",
        "link.distribution: 'gauss' is none of uniform, normal",
    ),
    "loss above 100%": ("link: {rate: 1 gbit, loss: 101%}\n", "link.loss: '101%' is more than 100%"),
    "loss as a fraction": ("link: {rate: 1 gbit, loss: 0.01}\n", "link.loss: '0.01' is not a probability"),
    "loss model in part": (
        "link:\n  rate: 1 gbit\n  loss: {gilbert_elliott: {good_to_bad: 1%}}\n",
        "line 3, link.loss.gilbert_elliott: expected good_to_bad, bad_to_good",
    ),
    "loss model unknown": (
        "link: {rate: 1 gbit, loss: {gilbert: {}}}\n",
        "link.loss.gilbert: unknown key 'gilbert': did you mean 'gilbert_elliott'?",
    ),
    "ways out above 100%": (
        "link: {rate: 1 gbit, loss: {four_state: {p13: 60%, p31: 1%, p14: 50%}}}\n",
        "link.loss.four_state: p13 + p14 and p31 + p32 can't be more than 100%",
    ),
    "reorder without delay": ("link: {rate: 1 gbit, reorder: 1%}\n", "link.reorder: a packet is reordered by skipping"),
    "queue of no packets": ("link: {rate: 1 gbit, queue: 0 packets}\n", "link.queue: '0 packets' is not a queue limit"),
    "queue of less than a packet": (
        "link: {rate: 1 gbit, queue: 1513 B}\n",
        "link.queue: 1.513 kB can't hold one packet of 1514 B",
    ),
    "queue without a limit": (
        "link: {rate: 1 gbit, queue: {ecn: 65 KiB}}\n",
        "link.queue: expected 'limit', and 'ecn'",
    ),
    "queue with two ways to mark": (
        "link: {rate: 1 gbit, queue: {limit: 1 MB, ecn: 65 KiB, red: {}}}\n",
        "link.queue: expected 'limit', and 'ecn' or 'red'",
    ),
    "threshold above the limit": (
        "link: {rate: 1 gbit, queue: {limit: 64 KiB, ecn: 65 KiB}}\n",
        "link.queue.ecn: expected thresholds that rise, from one packet of 1514 B to the limit of 64 KiB",
    ),
    "threshold on packets": (
        "link: {rate: 1 gbit, queue: {limit: 100 packets, ecn: 65 KiB}}\n",
        "link.queue.ecn: it counts bytes: expected a limit in bytes, not 100 packets",
    ),
    "ramp without a maximum": (
        "link: {rate: 1 gbit, queue: {limit: 1 MB, red: {min: 20 kB, probability: 1%}}}\n",
        "link.queue.red: expected min, max, probability",
    ),
    "ramp that falls": (
        "link: {rate: 1 gbit, queue: {limit: 1 MB, red: {min: 20 kB, max: 19 kB, probability: 1%}}}\n",
        "link.queue.red: expected thresholds that rise",
    ),
    "ramp that never marks": (
        "link: {rate: 1 gbit, queue: {limit: 1 MB, red: {min: 20 kB, max: 30 kB, probability: 0}}}\n",
        "link.queue.red: a probability of 0 takes no packet",
    ),
    "ramp with ECN in doubt": (
        "link: {rate: 1 gbit, queue: {limit: 1 MB, red: {min: 20 kB, max: 30 kB, probability: 1%, ecn: maybe}}}\n",
        "link.queue.red.ecn: 'maybe' is none of true, false",
    ),
    "queue too large for the kernel": (
        "link: {rate: 1 gbit, queue: 2 GiB}\n",
        "link.queue: '2 GiB' is not a queue limit: expected at most 2147483647 B",
    ),
    "dctcp without ECN": (
        "link: {rate: 1 gbit}\ntcp: {congestion: dctcp, ecn: false}\n",
        "line 2, tcp.ecn: dctcp is told of congestion by ECN alone",
    ),
    "queue without a rate": ("link: {rate: unlimited, queue: 9 packets}\n", "link.queue: a queue fills behind a rate"),
    "MTU too small": ("link: {rate: 1 gbit, mtu: 67}\n", "link.mtu: '67' is not a whole number from 68 to 65535"),
    "value where a mapping belongs": ("link: fast\n", "line 1, link: expected a mapping of keys to values"),
    "mapping where a value belongs": ("link: {rate: {max: 1}}\n", "link.rate: expected one value"),
    "unknown profile": ("profile: ethernet-11g\n", "line 1, profile: no profile 'ethernet-11g': expected one of"),
    "unknown topology": ("topology: {rung: {}}\n", "line 1, topology.rung: unknown key 'rung': did you mean 'ring'?"),
    "no topology": (
        "topology: {}\nlink: {rate: 1 gbit}\n",
        "line 1, topology: expected one topology of: star, dumbbell",
    ),
    "a topology's key missing": (
        "profile: ethernet-1g\ntopology: {fat-tree: {}}\n",
        "line 2, topology.fat-tree: expected 'k', a whole number from 2",
    ),
    "odd fat-tree": (
        "profile: ethernet-1g\ntopology: {fat-tree: {k: 5}}\n",
        "topology.fat-tree.k: 5 is no number of ports",
    ),
    "oversubscription of no rate": (
        "link: {rate: unlimited}\ntopology: {leaf-spine: {leaves: 2, spines: 1, oversubscription: 2}}\n",
        "line 2, topology.leaf-spine.oversubscription: uplinks are so many times slower than link.rate",
    ),
    "torus of one dimension": (
        "profile: ethernet-1g\ntopology: {torus: {sizes: [4]}}\n",
        "topology.torus.sizes: expected two or three sizes",
    ),
    "RTT missing": (
        "profile: ethernet-1g\ntopology: {wan: {rtt: {a: {b: 1 ms}, c: {b: 2 ms}}}}\n",
        "line 2, topology.wan.rtt: no time between a and c",
    ),
    "RTT without a unit": (
        "profile: ethernet-1g\ntopology:\n  wan:\n    rtt: {a: {b: 7}}\n",
        "line 4, topology.wan.rtt.a.b: '7' is not a duration",
    ),
    "unknown site": (
        "profile: ethernet-1g\ntopology: {wan: {rtt: aws, sites: [mars-1, us-east-1]}}\n",
        "line 2, topology.wan.sites[0]: 'mars-1' is none of us-east-1",
    ),
    "no such matrix": ("profile: ethernet-1g\ntopology: {wan: {rtt: gone.csv}}\n", "topology.wan.rtt: can't read"),
    "no hosts": (
        "topology: {star: {hosts: 0}}\nlink: {rate: 1 gbit}\n",
        "topology.star.hosts: '0' is not a whole number",
    ),
    "too few hosts": (
        "topology: {star: {hosts: 2, ranks_per_host: 1}}\nlink: {rate: 1 gbit}\n",
        "topology.star.hosts: 2 hosts of 1 ranks can't hold 4 ranks",
    ),
    "unknown link": (
        "profile: ethernet-1g\nlinks: {host9: {rate: 1 gbit}}\n",
        "line 2, links.host9: no link 'host9': expected one of host0",
    ),
    "ends in a star": (
        "profile: ethernet-1g\nlinks: {host1: {ends: [host1, host0]}}\n",
        "line 2, links.host1.ends: unknown key 'ends'",
    ),
    "unreachable host": (
        "link: {rate: 1 gbit}\nhosts: [a, b]\nswitches: [s]\nlinks: {a-s: {ends: [a, s]}}\n",
        "line 2, hosts: host 'b' is unreachable from 'a'",
    ),
    "link without ends": ("link: {rate: 1 gbit}\nhosts: [a, b]\nlinks: {x: {}}\n", "line 3, links.x: expected 'ends'"),
    "link to nowhere": (
        "link: {rate: 1 gbit}\nhosts: [a, b]\nlinks: {x: {ends: [a, z]}}\n",
        "line 3, links.x.ends: expected two different nodes of: a, b",
    ),
    "host twice": ("link: {rate: 1 gbit}\nhosts: [a, a]\n", "line 2, hosts: two hosts or switches have the same name"),
    "host with a path for a name": ("link: {rate: 1 gbit}\nhosts: [../x]\n", "line 2, hosts[0]: '../x' is not a name"),
    "rank on two hosts": (
        "link: {rate: 1 gbit}\nhosts: {a: {ranks: [0, 1]}, b: {ranks: [1, 2]}}\nlinks: {x: {ends: [a, b]}}\n",
        "line 2, hosts: the hosts' ranks are [0, 1, 1, 2]: expected each of the 4 ranks of the job once",
    ),
    "topology and hosts": (
        "topology: {star: {}}\nhosts: [a]\nlink: {rate: 1 gbit}\n",
        "line 2, hosts: a topology makes its own hosts",
    ),
    "unknown congestion control": (
        "profile: ethernet-1g\ntcp: {congestion: vegas}\n",
        "tcp.congestion: 'vegas' is none of",
    ),
    "unknown transport": ("profile: ethernet-1g\ntransport: quic\n", "line 2, transport: 'quic' is none of tcp, rdma"),
    "unknown recovery": ("profile: ib-edr\nrdma: {recovery: none}\n", "rdma.recovery: 'none' is none of go-back-n"),
    "lossless or not": ("profile: ib-edr\nrdma: {lossless: maybe}\n", "rdma.lossless: 'maybe' is none of true, false"),
    "free copies": (
        "profile: ethernet-1g\ncosts: {copy: 0 gbit}\n",
        "line 2, costs.copy: rate 0 bit: expected a whole number of bytes a second, more than 0, or 'unlimited'",
    ),
    "too small segments": (
        "profile: ethernet-1g\ntcp: {mss: 40}\n",
        "tcp.mss: '40' is not a whole number from 88 to 32767",
    ),
    "no stream": ("profile: ethernet-1g\ntcp: {streams: 0}\n", "tcp.streams: '0' is not a whole number from 1 to 64"),
    "unknown cost": ("profile: ethernet-1g\ncosts: {byte: 1 ns}\n", "costs.byte: unknown key 'byte'"),
    "unknown island": (
        "profile: ethernet-1g\ntopology:\n  star: {ranks_per_host: 2, island: nvlink}\n",
        "line 3, topology.star.island: no profile 'nvlink': expected one of ethernet-1g",
    ),
    "two parts of one name": (
        "profile: ethernet-1g\nhosts: {a: {ranks: [0, 1, 2], island: pcie-3}, a-1: {ranks: [3]}}\n"
        "switches: [s]\nlinks: {a: {ends: [a, s]}, b: {ends: [a-1, s]}}\n",
        "line 2, hosts.a.island: 'a-1' would be a part of machine 'a', and another has that name",
    ),
    "ends of a link inside a machine": (
        "profile: ethernet-1g\nhosts: {a: {ranks: [0, 1, 2, 3], island: pcie-3}}\nlinks: {a-1: {ends: [a-1, a]}}\n",
        "line 3, links.a-1.ends: unknown key 'ends'",
    ),
    "islands of a topology": ("topology: {star: {}}\nislands: [a]\n", "line 2, islands: a topology makes its own"),
    "negative seed": ("profile: ethernet-1g\nseed: -1\n", "line 2, seed: '-1' is not a whole number from 0"),
    "not YAML": ("link: [\n", "line 2: not valid YAML"),
    "a list": ("- link\n", "line 1: expected a mapping"),
    "two documents": ("profile: ethernet-1g\n---\nprofile: ethernet-1g\n", "line 2: not valid YAML"),
    "anchors": ("a: &a [*a]\n", "line 1, a[0]: anchors are not supported"),
    "nested too deeply": ("[" * 100_000, "nested too deeply"),
    "control characters": ("profile: \x07\n", "not valid YAML"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_the_error_names_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(text)
    with pytest.raises(NetworkError) as caught:
        load(path, ranks=4)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_neither_file_nor_profile(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="ethernet: no such file, nor a profile: those are ethernet-1g"):
        load(tmp_path / "ethernet")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NetworkError, match="not a text file in UTF-8"):
        load(path)


def test_an_override_names_itself() -> None:
    with pytest.raises(NetworkError, match=r"^override, link\.rat: unknown key 'rat'"):
        load("ethernet-1g", overrides={"link.rat": "1 gbit"})
    with pytest.raises(NetworkError, match="expected a mapping"):
        load("ethernet-1g", overrides={"profile.rate": "1 gbit"})
