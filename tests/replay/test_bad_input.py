"""What a user can get wrong with `tracebed replay`: exit status 2 and one line that names the file and the place."""

from __future__ import annotations

import gzip
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.replay.runs import all_reduces, tracebed, written
from traces.program import Program

STAR = "topology: {star: {}}\n"
APART = """\
hosts: [a, b, c, d]
switches: [s]
link: {rate: 1 gbit}
links: {a: {ends: [a, s]}, b: {ends: [b, s]}, c: {ends: [c, s]}}
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A job that could be replayed."""
    return written(all_reduces(4, 4000, steps=3), tmp_path)


def refused(*arguments: str | Path, network: str | Path = "ethernet-10g") -> str:
    """The one line that the command says, and nothing else, as it refuses."""
    said = tracebed("replay", *arguments, "--network", network)
    assert (said.returncode, said.stdout) == (2, "")
    (line,) = said.stderr.splitlines()
    return line.removeprefix("tracebed: ")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "not a .trace file (tracebed import makes one from a recording)"),
        (gzip.compress(bytes(1000))[:-9], "not a .trace file (tracebed import makes one from a recording)"),
        (b'{"traceEvents": 5}', "not a .trace file (tracebed import makes one from a recording)"),
    ],
    ids=["empty", "truncated gzip", "JSON"],
)
def test_no_trace_file(content: bytes, error: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.trace"
    path.write_bytes(content)
    assert refused(path) == f"{path}: {error}"


def test_a_trace_file_that_is_cut(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-200])
    assert refused(trace) == f"{trace}: not a .trace file (tracebed import makes one from a recording)"


def test_a_header_of_the_wrong_shape(tmp_path: Path) -> None:
    path = tmp_path / "bad.trace"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.json", '{"format": "no"}')
    assert refused(path).startswith(f"{path}, header.json: ")


def test_no_such_trace(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.trace") == f"{tmp_path / 'none.trace'}: No such file or directory"


def test_a_rank_that_was_not_recorded(tmp_path: Path) -> None:
    whole = all_reduces(4, 4000, steps=3)
    path = written(replace(whole, programs={rank: whole.programs[rank] for rank in range(3)}), tmp_path)
    assert refused(path).startswith(f"{path}, rank 3: can't be replayed: not recorded: rank 3 of a job of 4 ranks")


def test_a_trace_without_steps(tmp_path: Path) -> None:
    whole = all_reduces(2, 4000, steps=1)
    programs = {rank: Program(rank, program.ops[:-1]) for rank, program in whole.programs.items()}
    path = written(replace(whole, programs=programs, step_count=0), tmp_path)
    assert refused(path).startswith(f"{path}: marks no step")


@pytest.mark.corpus
def test_a_recording_without_rank_3(corpus: Path, tmp_path: Path) -> None:
    files = sorted((corpus / "self-recorded-gloo" / "resnet50-ddp").glob("*.json.gz"))
    kept = [file for file in files if "rank-3" not in file.name]
    assert 0 < len(kept) < len(files)
    path = tmp_path / "three.trace"
    assert tracebed("import", *kept, "-o", path).returncode == 0
    assert refused(path).startswith(f"{path}, rank 3: can't be replayed: not recorded: rank 3")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (STAR + "link: {rate: 1 gbit, lose: 1%}", "line 2, link.lose: unknown key 'lose': did you mean 'loss'?"),
        (STAR + "link: {rate: 0 gbit}", "line 2, link.rate: rate 0 bit: expected a whole number of bytes a second"),
        (STAR + "link: {rate: 1 gbit, delay: -1 us}", "line 2, link.delay: '-1 us' is negative"),
        (APART, "line 1, hosts: host 'd' is unreachable from 'a'"),
        ("topology: {star: {hosts: 2, ranks_per_host: 1}}\nlink: {rate: 1 gbit}", "line 1, topology.star.hosts: "),
        ("link: [", "line 1: not valid YAML"),
    ],
    ids=["unknown key", "rate 0", "negative delay", "unreachable host", "too few hosts", "not YAML"],
)
def test_a_network_that_makes_no_sense(text: str, error: str, trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(text)
    assert refused(trace, network=path).startswith(f"{path}, {error}")


def test_no_such_network(trace: Path) -> None:
    assert refused(trace, network="etherneet").startswith(
        "etherneet: no such file, nor a profile: those are ethernet-1g"
    )


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("--what-if", "speed=2", "what-if 'speed=2': expected NAME=VALUE ("),
        ("--what-if", "compute=fast", "what-if 'compute=fast': 'fast' is not a duration"),
        ("--what-if", "compute=-1", "what-if 'compute=-1': '-1' is negative"),
        ("--steps", "5", "--steps 5: expected A:B"),
        ("--steps", "2:1", "no steps 2:1 (the trace has steps 0:3)"),
        ("--steps", "7:9", "no steps 7:9 (the trace has steps 0:3)"),
        ("--set", "link.rate=fast", "override, link.rate: 'fast' is not a rate"),
    ],
)
def test_an_option_that_makes_no_sense(option: str, value: str, error: str, trace: Path) -> None:
    assert refused(trace, option, value).startswith(error)


def test_usage_is_shown_for_what_is_no_option(trace: Path) -> None:
    said = tracebed("replay", trace, "--network", "ethernet-10g", "--on", "moon")
    assert said.returncode == 2
    assert said.stderr.splitlines()[-1] == "Error: Invalid value for '--on': 'moon' is not one of 'virtual', 'host'."


@pytest.mark.lab
def test_a_place_where_no_folder_can_be(lab: Path, trace: Path) -> None:
    assert refused(trace, "-o", trace) == f"{trace}/job-ethernet-10g: Not a directory"


def test_a_machine_without_the_lab_kernel(trace: Path, tmp_path: Path) -> None:
    said = tracebed(
        "replay", trace, "--network", "ethernet-10g", "-o", tmp_path / "runs", env={"XDG_CACHE_HOME": str(tmp_path)}
    )
    assert (said.returncode, said.stdout) == (3, "")
    assert said.stderr == "tracebed: the lab kernel is not built; mend: tracebed kernel build\n"
    assert not (tmp_path / "runs").exists()
