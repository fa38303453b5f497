"""`tracebed network`, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.network import from_dict, load, profiles

RUN = [sys.executable, "-c", "from replay.cli.main import main; main()", "network"]


def _run(*arguments: str, columns: int = 160) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(columns)}
    return subprocess.run([*RUN, *arguments], capture_output=True, text=True, check=False, env=environment)


def test_list_shows_every_profile_in_120_columns() -> None:
    done = _run("list", columns=120)
    assert done.returncode == 0
    for name in profiles():
        assert name in done.stdout
    for heading in ("rate", "delay", "MTU", "queue", "loss", "transport", "message", "copy", "stream"):
        assert heading in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120
    narrow = _run("list", columns=80).stdout
    assert all(name in narrow for name in profiles())
    assert "message" not in narrow
    assert max(map(len, narrow.splitlines())) <= 92  # the hints below the table
    sources = _run("list", "--sources").stdout
    assert "assumed" in sources
    assert "The rest: as roce-100." in sources
    rows = json.loads(_run("list", "--json").stdout)
    assert [row["profile"] for row in rows] == list(profiles())
    assert rows[1] | {"source": ""} == {
        "profile": "ethernet-10g", "rate": "10 gbit", "delay": "2 us", "MTU": "1500", "queue": "unlimited", "loss": "none",
        "transport": "tcp cubic", "message": "13.8 us", "copy": "40 gbit",
            "stream": "16.5 gbit", "source": "",
    }  # fmt: skip
    assert rows[8]["transport"] == "rdma go-back-n dcqcn lossless"


def test_show_names_islands(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text("profile: roce-100\ntopology: {star: {hosts: 2, ranks_per_host: 4, island: nvlink-a100}}\n")
    done = _run("show", str(path))
    assert done.returncode == 0
    assert "host0-0 (0), host0-1 (1)" in done.stdout
    assert "machine's cards): host0, host1\n" in done.stdout
    assert "host costs: message 530 ns, copy unlimited, stream unlimited, reduce unlimited\n" in done.stdout
    again = tmp_path / "again.yaml"
    again.write_text(_run("show", str(path), "--yaml").stdout)
    assert load(again) == load(path)


def test_show_says_where_a_queue_marks_and_who_listens(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text("link: {rate: 10 gbit, queue: {limit: 300 KiB, ecn: 100 KiB}}\ntcp: {ecn: true}\n")
    shown = _run("show", str(path)).stdout
    assert "TCP cubic with ECN, buffers tuned by the kernel; fidelity packet" in shown
    assert "300 KiB, ECN above 100 KiB" in shown


def test_show_groups_what_is_alike() -> None:
    done = _run(
        "show", "ethernet-10g", "--ranks", "64", "--set", "links.host2.up.rate=1 gbit", "--set", "link.queue=1 MB"
    )
    assert done.returncode == 0
    assert "and 58 more" in done.stdout
    assert "host2 up" in done.stdout
    assert "1 MB" in done.stdout
    assert "fidelity packet" in done.stdout


def test_show_prints_the_resolved_form(tmp_path: Path) -> None:
    network = load("wan-continental", ranks=3)
    assert from_dict(json.loads(_run("show", "wan-continental", "--ranks", "3", "--json").stdout)) == network
    again = tmp_path / "again.yaml"
    again.write_text(_run("show", "wan-continental", "--ranks", "3", "--yaml").stdout)
    assert load(again) == network


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "link:\n  rate: 1 gbit\n  dealy: 1 us\n",
            "{}, line 3, link.dealy: unknown key 'dealy': did you mean 'delay'?",
        ),
        (
            "link: {rate: 0 gbit}\n",
            "{}, line 1, link.rate: rate 0 bit: expected a whole number of bytes a second, more",
        ),
        ("link: {rate: 1 gbit, delay: -1 us}\n", "{}, line 1, link.delay: '-1 us' is negative: a duration can't be"),
        ("hosts: [a, b]\nlink: {rate: 1 gbit}\n", "{}, line 1, hosts: host 'b' is unreachable from 'a'"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(text)
    done = _run("show", str(path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("tracebed: " + line.format(path))
    assert done.stderr.count("\n") == 1


def test_a_setting_that_is_none_is_bad_usage() -> None:
    done = _run("show", "ethernet-1g", "--set", "link")
    assert done.returncode == 2
    assert "expected KEY=VALUE" in done.stderr


def test_show_says_when_events_begin(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text("profile: ethernet-10g\nevents: [{down: {link: host1, way: up, at: 20 ms, for: 1 ms}}]\n")
    done = _run("show", str(path))
    assert "fidelity packet" in done.stdout
    assert "events: host1 up from 20 ms on (2 steps)" in done.stdout


def test_show_says_what_the_background_sends(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(
        "profile: ethernet-10g\ntopology: {star: {hosts: 3}}\ntraffic:\n"
        "  - constant: {from: host0, to: host1, rate: 1 gbit, at: 5 ms}\n"
        "  - incast: {from: [host0, host1], to: host2, every: 1 ms, size: 64 KiB, for: 1 s}\n"
    )
    said = _run("show", str(path)).stdout
    assert "traffic: constant udp host0 to host1 at 1 gbit from 5 ms on" in said
    assert "incast tcp host0 host1 to host2 64 KiB every 1 ms from 0 ns for 1 s" in said
