"""Opening what a user names as recordings: files, gzip, tar archives, folders of them."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, cast

from isal import igzip, isal_zlib

from traces.errors import TraceError

# One rank's recording unpacks to some hundreds of MB; a bomb goes far beyond this.
MAX_FILE_BYTES = 4 << 30
HEAD_BYTES = 1 << 14
_BLOCK_BYTES = 1 << 20
_AHEAD = 2
_GZIP = b"\x1f\x8b"
_PLAIN = (".json", ".jsonl", ".tar", ".goal", ".et", ".txt", ".log", ".csv", ".pcap", ".pcapng", ".pkl", ".pickle")
_READABLE = (*_PLAIN, *(f"{plain}.gz" for plain in _PLAIN), ".tgz")


@dataclass(frozen=True, slots=True)
class Opened:
    """One recording, unpacked. `name` has no folder in it; `sha256` is of the unpacked bytes.

    `is_named` tells a file that the user named from one that merely lay in a folder or an archive.
    """

    name: str
    data: bytes
    sha256: str
    is_named: bool


class Stream:
    """One recording that is read as it is unpacked, once. `head` is how it starts."""

    def __init__(self, name: str, blocks: Iterator[bytes], *, is_named: bool) -> None:
        self.name = name.removesuffix(".gz")
        self.is_named = is_named
        self._hash = hashlib.sha256()
        self._rest = blocks
        self.head = b""
        while len(self.head) < HEAD_BYTES and (block := next(self._rest, b"")):
            self.head += block

    def blocks(self) -> Iterator[bytes]:
        """All of it, in order; it is read, unpacked and hashed in a thread of its own. Raises TraceError, OSError."""
        return _ahead(self._hashed())

    def _hashed(self) -> Iterator[bytes]:
        for block in chain([self.head], self._rest):
            self._hash.update(block)
            yield block

    def sha256(self) -> str:
        """Of what `blocks` gave, once it has given all."""
        return self._hash.hexdigest()

    def whole(self) -> Opened:
        """All of it at once. Raises TraceError, OSError."""
        data = b"".join(self.blocks())
        return Opened(self.name, data, self.sha256(), self.is_named)


def open_all(paths: Sequence[Path]) -> Iterator[Stream]:
    """Every recording in `paths`, one at a time, folders and archives in name order. Raises TraceError, OSError.

    Each has to be read before the next is asked for.
    """
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and _is_readable(p.name))
            if not inside:
                raise TraceError("no recordings in this folder", file=path, mend=f"they end in {', '.join(_READABLE)}")
            for file in inside:
                yield from _open(file, is_named=False)
        else:
            yield from _open(path, is_named=True)


def _is_readable(name: str) -> bool:
    """By its ending; flight recorders' dumps have none but the rank ("nccl_trace_rank_3")."""
    return not name.startswith(".") and (name.endswith(_READABLE) or ("." not in name and name[-1].isdigit()))


def _open(path: Path, *, is_named: bool) -> Iterator[Stream]:
    if not path.stat().st_size:
        raise TraceError("the file is empty", file=path)
    with path.open("rb") as file, _unpacked(file) as plain:
        if path.name.endswith((".tar.gz", ".tgz", ".tar")):
            # Members are read in the order of their names: on disk, so that each is unpacked once.
            with tempfile.TemporaryFile() as spool:
                spool.writelines(_blocks(plain, path))
                spool.seek(0)
                yield from _members(path, spool)
            return
        stream = Stream(path.name, _blocks(plain, path), is_named=is_named)
        if not stream.head.strip():
            raise TraceError("the file holds nothing", file=path)
        yield stream


def _ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks, taken a few ahead in a thread."""
    with ThreadPoolExecutor(1) as reader:
        taken = deque(reader.submit(next, blocks, b"") for _ in range(_AHEAD))
        while block := taken.popleft().result():
            taken.append(reader.submit(next, blocks, b""))
            yield block


@contextmanager
def _unpacked(file: IO[bytes]) -> Iterator[IO[bytes]]:
    is_packed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    if not is_packed:
        yield file
        return
    with igzip.IGzipFile(fileobj=file) as plain:  # type: ignore[no-untyped-call]
        yield cast(IO[bytes], plain)


def _blocks(file: IO[bytes], path: Path) -> Iterator[bytes]:
    total = 0
    try:
        while block := file.read(_BLOCK_BYTES):
            total += len(block)
            if total > MAX_FILE_BYTES:
                raise TraceError(f"unpacks to more than {MAX_FILE_BYTES} bytes", file=path)
            yield block
    except (EOFError, gzip.BadGzipFile, isal_zlib.error) as error:  # type: ignore[misc]
        raise TraceError(f"the gzip is damaged or cut: {error}", file=path, mend="copy the file again") from error


def _members(path: Path, plain: IO[bytes]) -> Iterator[Stream]:
    try:
        with tarfile.open(fileobj=plain, mode="r:") as archive:
            files = [m for m in archive.getmembers() if m.isfile() and not Path(m.name).name.startswith(".")]
            for member in sorted(files, key=lambda m: m.name):
                inner = archive.extractfile(member)
                assert inner is not None
                with inner, _unpacked(inner) as content:
                    stream = Stream(Path(member.name).name, _blocks(content, path), is_named=False)
                    if not stream.head.strip():
                        raise TraceError("the file is empty", file=path, place=member.name)
                    yield stream
    except tarfile.TarError as error:
        raise TraceError(f"the tar archive is damaged or cut: {error}", file=path) from error
