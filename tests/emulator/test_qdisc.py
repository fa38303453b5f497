"""The other qdiscs' bytes; comparing what was asked with what the kernel has; and this machine's kernel itself."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from emulator.errors import BedError, MachineError, NetworkError
from emulator.impairments import Event
from emulator.qdisc import Qdisc, attributes, change, install, read_back, verify
from emulator.qdisc.fifo import ByteFifo, PacketFifo
from emulator.qdisc.fq import Fq
from emulator.qdisc.netem import Netem
from emulator.qdisc.red import Red
from emulator.qdisc.tbf import Tbf
from emulator.units import Duration, Probability, Rate, Size

if TYPE_CHECKING:
    from pyroute2 import IPRoute

TBF = Tbf(rate=Rate.parse("1 gbit"), burst=Size(8000), limit=Size(10**6), overhead=24)


def test_tbf_byte_by_byte() -> None:
    parms = struct.pack("=BBHhHI", 0, 1, 24, 0, 0, 125_000_000)  # tc_ratespec: Ethernet, overhead, bytes/s
    parms += bytes(12)  # no peak rate
    parms += struct.pack("=III", 10**6, 1000, 0)  # limit, 8000 bytes at 1 Gbit/s in ticks of 64 ns, mtu
    assert TBF.encode() == struct.pack("=HH", 4 + 36, 1) + parms


def test_tbf_above_32_bits_of_bytes_a_second() -> None:
    found = attributes.unpack(Tbf(rate=Rate.parse("800 gbit"), burst=Size(1600), limit=Size(1)).encode())
    assert struct.unpack_from("=8xI", found[1]) == (2**32 - 1,)
    assert found[4] == struct.pack("=Q", 10**11)


def test_tbf_bucket_is_never_smaller_than_asked() -> None:
    for rate in ("7920 bit", "1 gbit", "10 gbit", "100 gbit", "800 gbit"):
        asked = Tbf(rate=Rate.parse(rate), burst=Size(1538), limit=Size(10**6))
        assert Tbf.decode(asked.encode()).burst >= 1538


def test_tbf_refuses_a_rate_of_no_whole_bytes() -> None:
    with pytest.raises(NetworkError, match="whole bytes"):
        Tbf(rate=Rate(1), burst=Size(1), limit=Size(1))


def test_fifo_bytes() -> None:
    assert PacketFifo(100).encode() == struct.pack("=I", 100)
    assert ByteFifo(Size(65536)).encode() == struct.pack("=I", 65536)


def test_red_byte_by_byte() -> None:
    red = Red(limit=Size(9), minimum=Size(3), maximum=Size(4), probability=Probability(5), ecn=True)
    assert red.encode() == (
        struct.pack("=HH3I4B", 20, 1, 9, 3, 4, 0, 0, 0, 1)  # tc_red_qopt: thresholds, Wlog, Plog, Scell_log, flags
        + struct.pack("=HH", 260, 2)
        + bytes([31]) * 256  # no limit on the shift: the old queue is forgotten at once
        + struct.pack("=HHI", 8, 3, 5)
    )
    assert Red.decode(red.encode()) == red


def test_fq_byte_by_byte() -> None:
    fq = Fq(limit=1000, flow_limit=100)
    assert fq.encode() == struct.pack("=HHIHHIHHI", 8, 1, 1000, 8, 2, 100, 8, 5, 0)
    assert Fq.decode(fq.encode()) == fq


def test_attributes_of_impossible_length_are_refused() -> None:
    for length in (0, 3, 9):
        with pytest.raises(ValueError, match="attribute 7 says"):
            attributes.unpack(struct.pack("=HHI", length, 7, 0))


def test_attribute_flags_and_padding_are_not_content() -> None:
    data = struct.pack("=HH3sx", 7, 0x8000 | 5, b"abc") + struct.pack("=HHI", 8, 6, 1)
    assert attributes.unpack(data) == {5: b"abc", 6: struct.pack("=I", 1)}
    assert attributes.pack(5, b"abc") == struct.pack("=HH3sx", 7, 5, b"abc")


def test_verify_accepts_what_the_kernel_can_store() -> None:
    asked = Tbf(rate=Rate.parse("10 gbit"), burst=Size(15140), limit=Size(10**6))
    verify(asked, Tbf(rate=asked.rate, burst=Size(15200), limit=asked.limit))  # 190 ticks of 80 bytes
    verify(Netem(), Netem(seed=123))  # the kernel chooses a seed where none was asked for


@pytest.mark.parametrize(
    ("asked", "got", "message"),
    [
        (Netem(delay=Duration(50_000)), Netem(delay=Duration(49_984)), "netem delay: asked for 50 us, the kernel has"),
        (Netem(rate=Rate.parse("1 gbit")), Netem(), "netem rate: asked for 1 gbit, the kernel has None"),
        (Netem(), Netem(loss=Event(Probability(1))), "netem loss"),
        (Netem(seed=1), Netem(seed=None), "netem seed"),
        (PacketFifo(100), PacketFifo(99), "pfifo limit"),
        (PacketFifo(100), Netem(), "asked for pfifo, the kernel has netem"),
    ],
)
def test_verify_names_what_differs(asked: Qdisc, got: Qdisc, message: str) -> None:
    with pytest.raises(BedError, match=message):
        verify(asked, got)


@pytest.mark.root
@pytest.mark.parametrize(
    "qdisc",
    [
        TBF,
        Tbf(rate=Rate.parse("7920 bit"), burst=Size(1600), limit=Size(10**6)),
        Tbf(rate=Rate.parse("100 gbit"), burst=Size(9038), limit=Size(10**6)),
        Tbf(rate=Rate.parse("800 gbit"), burst=Size(9038), limit=Size(10**6)),
        PacketFifo(100),
        ByteFifo(Size(123_456)),
    ],
    ids=str,
)
def test_the_kernel_reports_what_was_installed(netns_root: IPRoute, qdisc: Qdisc) -> None:
    device = _veth(netns_root)
    install(netns_root, device, qdisc)
    got = read_back(netns_root, device)
    assert got == type(qdisc).decode(qdisc.encode())


@pytest.mark.root
def test_a_change_is_read_back_too(netns_root: IPRoute) -> None:
    device = _veth(netns_root)
    install(netns_root, device, TBF)
    slower = Tbf(rate=Rate.parse("10 mbit"), burst=Size(3000), limit=Size(30_000))
    change(netns_root, device, slower)
    assert read_back(netns_root, device) == Tbf.decode(slower.encode())


@pytest.mark.root
def test_what_the_kernel_refuses_is_an_error_that_says_so(netns_root: IPRoute) -> None:
    device = _veth(netns_root)
    with pytest.raises(BedError, match="no qdisc at parent"):
        read_back(netns_root, device, parent=0x10001)
    install(netns_root, device, TBF)
    with pytest.raises(BedError, match=r"can't add tbf: File exists"):
        install(netns_root, device, TBF)


@pytest.mark.root
def test_a_kind_that_the_kernel_lacks_is_the_machines_error(
    netns_root: IPRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = _veth(netns_root)
    monkeypatch.setattr(PacketFifo, "kind", "no-such-kind")
    monkeypatch.setattr("emulator.qdisc.KINDS", {"no-such-kind": PacketFifo})
    with pytest.raises(MachineError, match="no no-such-kind"):
        install(netns_root, device, PacketFifo(1))


def _veth(ipr: IPRoute) -> int:
    ipr.link("add", ifname="v0", kind="veth", peer="v1")
    return int(ipr.link_lookup(ifname="v0")[0])
