"""The `.trace` file: a zip of `header.json` and, per rank, one `.npy` for each column of its operations.

    header.json              everything that is not an operation, and the table of strings
    ranks/R/COLUMN.npy       one number an operation; COLUMNS gives names and types
    ranks/R/splits.npy       int64, the all_to_all splits of rank R's operations one behind the other

Nothing in it is executed: no pickle, and every size is held against a bound and against the header before it is read.
The same trace gives the same bytes: members have a fixed date and order.
"""

from __future__ import annotations

import errno
import hashlib
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from traces.columns import COLUMNS, Columns, Strings, pack, unpack
from traces.errors import TraceError
from traces.program import Finding, Group, Op, Program, Source, Trace

VERSION = 1
FORMAT = "tracebed"

# Bounds on what a file may make a reader allocate; real recordings have some thousand operations a rank.
MAX_OPS = 50_000_000
MAX_HEADER_BYTES = 256 << 20
_NPY_HEADER_BYTES = 4096
# The text of a header is a Python expression. numpy always writes this one, and nothing else is evaluated.
_NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<type>[<>|][A-Za-z]([1-9]\d{0,2})?)', 'fortran_order': False, "
    rb"'shape': \((?P<shape>(\d{1,18}, ?)*(\d{1,18})?)\), \} *\n",
    re.DOTALL,
)
# What zipfile raises where a zip's own fields are damaged, besides OSError for a place before the file.
_DAMAGE = (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error, zlib.error)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip can hold


class RankSizes(msgspec.Struct, frozen=True):
    """How many operations and all_to_all split entries a rank has."""

    ops: int
    splits: int


class Header(msgspec.Struct, frozen=True):
    """`header.json`. `strings` is the table that the columns `name` and `reduce_op` point into."""

    format: str
    version: int
    world_size: int
    step_count: int
    groups: tuple[Group, ...]
    ranks: dict[int, RankSizes]
    strings: tuple[str, ...]
    sources: tuple[Source, ...] = ()
    findings: tuple[Finding, ...] = ()
    hosts: dict[int, str] = {}
    clock_residual_ns: dict[int, int] = {}
    provenance: dict[str, str] = {}


# version -> the function that turns a header of that version into one of the next.
Migration = Callable[[dict[str, Any]], dict[str, Any]]
MIGRATIONS: Mapping[int, Migration] = {}


def write(trace: Trace, path: Path) -> None:
    """Write `trace` to `path`, whole or not at all."""
    strings = Strings()
    try:
        packed = {rank: pack(program.ops, strings) for rank, program in sorted(trace.programs.items())}
    except OverflowError as error:
        raise TraceError(f"an operation has a number that no column holds: {error}", file=path) from error
    header = Header(
        format=FORMAT,
        version=VERSION,
        world_size=trace.world_size,
        step_count=trace.step_count,
        groups=trace.groups,
        ranks={rank: RankSizes(columns.size, len(columns.splits)) for rank, columns in packed.items()},
        strings=strings.table,
        sources=trace.sources,
        findings=trace.findings,
        hosts=dict(sorted(trace.hosts.items())),
        clock_residual_ns=dict(sorted(trace.clock_residual_ns.items())),
        provenance=dict(sorted(trace.provenance.items())),
    )
    unfinished = path.with_name(path.name + ".part")
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            _put(archive, "header.json", msgspec.json.format(msgspec.json.encode(header), indent=1))
            for rank, columns in packed.items():
                for name, values in columns.arrays().items():
                    buffer = io.BytesIO()
                    np.lib.format.write_array(buffer, values, version=(1, 0), allow_pickle=False)
                    _put(archive, f"ranks/{rank}/{name}.npy", buffer.getvalue())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _put(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name, _EPOCH)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.external_attr = 0o644 << 16
    archive.writestr(member, data)


def read(path: Path) -> Trace:
    """Read a whole trace. Raises TraceError naming the file and the member that is wrong, and OSError."""
    with _open(path) as archive:
        header = _header(archive, path)
        shared: dict[bytes, Op] = {}
        return Trace(
            world_size=header.world_size,
            groups=header.groups,
            programs={rank: _program(archive, header, rank, path, shared) for rank in sorted(header.ranks)},
            step_count=header.step_count,
            sources=header.sources,
            findings=header.findings,
            hosts=header.hosts,
            clock_residual_ns=header.clock_residual_ns,
            provenance=header.provenance,
        )


def read_rank(path: Path, rank: int) -> Program:
    """Read one rank's program and nothing of the others'. Raises TraceError, also if the trace has no such rank."""
    with _open(path) as archive:
        header = _header(archive, path)
        if rank not in header.ranks:
            raise TraceError(f"has no rank {rank}", file=path, mend=f"it has {sorted(header.ranks)}")
        return _program(archive, header, rank, path, {})


def read_header(path: Path) -> Header:
    """Read everything but the operations. Raises TraceError, OSError."""
    with _open(path) as archive:
        return _header(archive, path)


def trace_hash(path: Path) -> str:
    """SHA-256 (hex) of what the trace holds: names and unpacked contents of its members."""
    digest = hashlib.sha256()
    with _open(path) as archive:
        header = _header(archive, path)
        for name in ["header.json", *(m for rank in sorted(header.ranks) for m in _members_of(rank))]:
            data = _member(archive, name, path, _limit(header, name))
            digest.update(f"{name}\0{len(data)}\0".encode())
            digest.update(data)
    return digest.hexdigest()


def _members_of(rank: int) -> list[str]:
    return [f"ranks/{rank}/{name}.npy" for name in (*COLUMNS, "splits")]


def _limit(header: Header, name: str) -> int:
    if name == "header.json":
        return MAX_HEADER_BYTES
    _, rank, column = name.removesuffix(".npy").split("/")
    sizes = header.ranks[int(rank)]
    return 8 * (sizes.splits if column == "splits" else sizes.ops) + _NPY_HEADER_BYTES


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise TraceError("not a .trace file", file=path, mend="tracebed import makes one from a recording") from error


def _member(archive: zipfile.ZipFile, name: str, path: Path, limit: int) -> bytes:
    try:
        info = archive.getinfo(name)
    except KeyError as error:
        raise TraceError("is missing", file=path, place=name) from error
    if info.file_size > limit:
        raise TraceError(f"claims {info.file_size} bytes, at most {limit} can be right", file=path, place=name)
    try:
        return archive.read(info)
    except (*_DAMAGE, OSError) as error:
        raise TraceError(f"is damaged: {error}", file=path, place=name) from error


def _header(archive: zipfile.ZipFile, path: Path) -> Header:
    data = _member(archive, "header.json", path, MAX_HEADER_BYTES)
    try:
        plain = msgspec.json.decode(data, type=dict[str, Any])
        if plain.get("format") != FORMAT or not isinstance(plain.get("version"), int):
            raise TraceError("is not the header of a trace", file=path, place="header.json")
        plain = migrated(plain, VERSION, MIGRATIONS, path)
        header = msgspec.convert(plain, Header, strict=False)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise TraceError(f"can't be read: {error}", file=path, place="header.json") from error
    for rank, sizes in header.ranks.items():
        if not (0 <= rank < header.world_size and 0 <= sizes.ops <= MAX_OPS and 0 <= sizes.splits <= MAX_OPS):
            raise TraceError(
                f"rank {rank} of {header.world_size} with {sizes.ops} operations", file=path, place="header.json"
            )
    return header


def migrated(plain: dict[str, Any], target: int, migrations: Mapping[int, Migration], path: Path) -> dict[str, Any]:
    """The header as version `target` has it, one step at a time. Raises TraceError where there is no way."""
    if plain["version"] > target:
        raise TraceError(
            f"is of version {plain['version']}, made by a newer tracebed",
            file=path,
            mend=f"this one reads up to {target}",
        )
    while plain["version"] < target:
        step = migrations.get(plain["version"])
        if step is None:
            raise TraceError(
                f"is of version {plain['version']}, which no tracebed reads", file=path, place="header.json"
            )
        plain = {**step(plain), "version": plain["version"] + 1}
    return plain


def _program(archive: zipfile.ZipFile, header: Header, rank: int, path: Path, shared: dict[bytes, Op]) -> Program:
    sizes = header.ranks[rank]
    arrays = {
        name: _array(archive, f"ranks/{rank}/{name}.npy", path, dtype, sizes.splits if name == "splits" else sizes.ops)
        for name, dtype in (*COLUMNS.items(), ("splits", "<i8"))
    }
    splits = arrays.pop("splits")
    try:
        return Program(rank, unpack(Columns(arrays, splits), header.strings, shared))
    except (IndexError, ValueError, KeyError) as error:
        raise TraceError(f"operations can't be read: {error}", file=path, place=f"ranks/{rank}") from error


def _array(archive: zipfile.ZipFile, name: str, path: Path, dtype: str, length: int) -> npt.NDArray[Any]:
    data = _member(archive, name, path, np.dtype(dtype).itemsize * length + _NPY_HEADER_BYTES)
    head = data[: 10 + int.from_bytes(data[8:10], "little")]  # NEP 1: magic, version, 16-bit length, text
    said = _NPY_HEADER.fullmatch(head)
    try:
        if said is None:
            raise ValueError("not an .npy of version 1.0 as numpy writes it")
        found, shape = (
            np.dtype(said["type"].decode()),
            tuple(int(size) for size in said["shape"].replace(b",", b" ").split()),
        )
    except (TypeError, ValueError) as error:
        raise TraceError(f"is damaged: {error}", file=path, place=name) from error
    if shape != (length,) or found != np.dtype(dtype) or len(data) - len(head) != length * found.itemsize:
        raise TraceError(f"holds {found} {shape}, expected {dtype} ({length},)", file=path, place=name)
    return np.frombuffer(data, dtype=found, offset=len(head))
