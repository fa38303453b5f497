"""Opening what a user names as recordings: files, gzip, tar archives, folders of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from traces.errors import TraceError

# One rank's recording unpacks to some tens of MB; a bomb goes far beyond this.
MAX_FILE_BYTES = 4 << 30
_GZIP = b"\x1f\x8b"
_READABLE = (
    *(".json", ".json.gz", ".jsonl", ".jsonl.gz", ".tar.gz", ".tgz", ".tar", ".goal", ".goal.gz", ".et", ".et.gz"),
    *(".txt", ".txt.gz", ".log", ".log.gz", ".csv", ".csv.gz"),
)


@dataclass(frozen=True, slots=True)
class Opened:
    """One recording, unpacked. `name` has no folder in it; `sha256` is of the unpacked bytes.

    `is_named` tells a file that the user named from one that merely lay in a folder or an archive.
    """

    name: str
    data: bytes
    sha256: str
    is_named: bool


def open_all(paths: Sequence[Path]) -> Iterator[Opened]:
    """Every recording in `paths`, one at a time, folders and archives in name order. Raises TraceError, OSError."""
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.name.endswith(_READABLE) and not p.name.startswith("."))
            if not inside:
                raise TraceError("no recordings in this folder", file=path, mend=f"they end in {', '.join(_READABLE)}")
            for file in inside:
                yield from _open(file, is_named=False)
        else:
            yield from _open(path, is_named=True)


def _open(path: Path, *, is_named: bool) -> Iterator[Opened]:
    data = path.read_bytes()
    if not data:
        raise TraceError("the file is empty", file=path)
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        yield from _members(path, data)
        return
    data = _unzip(data, path) if data.startswith(_GZIP) else data
    if not data.strip():
        raise TraceError("the file holds nothing", file=path)
    yield _opened(path.name, data, is_named=is_named)


def _opened(name: str, data: bytes, *, is_named: bool) -> Opened:
    return Opened(name.removesuffix(".gz"), data, hashlib.sha256(data).hexdigest(), is_named)


def _unzip(data: bytes, path: Path) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            plain = stream.read(MAX_FILE_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"the gzip is damaged or cut: {error}", file=path, mend="copy the file again") from error
    if len(plain) > MAX_FILE_BYTES:
        raise TraceError(f"unpacks to more than {MAX_FILE_BYTES} bytes", file=path)
    return plain


def _members(path: Path, data: bytes) -> Iterator[Opened]:
    plain = _unzip(data, path) if data.startswith(_GZIP) else data
    try:
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            files = [m for m in archive.getmembers() if m.isfile() and not Path(m.name).name.startswith(".")]
            for member in sorted(files, key=lambda m: m.name):
                inner = archive.extractfile(member)
                assert inner is not None
                content = inner.read()
                content = _unzip(content, path) if content.startswith(_GZIP) else content
                if not content.strip():
                    raise TraceError("the file is empty", file=path, place=member.name)
                yield _opened(Path(member.name).name, content, is_named=False)
    except tarfile.TarError as error:
        raise TraceError(f"the tar archive is damaged or cut: {error}", file=path) from error
