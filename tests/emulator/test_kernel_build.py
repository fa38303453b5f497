"""Building the lab kernel, but for the compiling: what is found, what is refused, and how that is said."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.errors import MachineError
from emulator.kernel import build


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tracebed" / "kernel"


@pytest.fixture
def all_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "missing_tools", tuple)


def quietly(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def put(cache: Path, **about: str) -> Path:
    """A file where a kernel would be."""
    kernel = cache / build._key() / "linux"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"")
    (kernel.parent / "build.json").write_text(json.dumps(about))
    return kernel


def key_of(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """The key that the options and the patch in `folder` give, as `require` then looks for it."""
    monkeypatch.setattr(build, "_HERE", folder)
    return build._key()


def test_a_kernel_that_is_there_is_not_built_again(cache: Path) -> None:
    kernel = put(cache, source="x", version="6.12.1")
    assert build.build(quietly) == build.find() == build.require() == kernel
    assert build.describe(kernel)["version"] == "6.12.1"


def test_other_options_or_another_patch_are_another_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set()
    for number, (options, patch) in enumerate([("a", "b"), ("a", "c"), ("d", "b")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "lab.config").write_text(options)
        (folder / "lab.patch").write_text(patch)
        keys.add(key_of(monkeypatch, folder))
    assert len(keys) == 3


def test_without_a_kernel_the_mend_builds_it() -> None:
    with pytest.raises(MachineError, match="not built; mend: tracebed kernel build"):
        build.require()


def test_missing_tools_are_named_as_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set(build.missing_tools()) >= {"gcc", "flex", "bison", "xz-utils"}
    with pytest.raises(MachineError, match="mend: sudo apt-get install -y gcc make flex"):
        build.build(quietly)


@pytest.mark.usefixtures("all_tools")
def test_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(MachineError, match="x86-64 Linux only"):
        build.build(quietly)


@pytest.mark.usefixtures("all_tools")
@pytest.mark.parametrize("wrong", ["no tarball", "another program"])
def test_a_source_that_is_not_linux_is_refused_and_nothing_is_left(tmp_path: Path, cache: Path, wrong: str) -> None:
    source = tmp_path / "source.tar"
    if wrong == "no tarball":
        source.write_text("hello")
        why = "could not unpack the source"
    else:
        (tmp_path / "README").write_text("hello")
        with tarfile.open(source, "w") as tar:
            tar.add(tmp_path / "README", "linux/README")
        why = r"could not patch the source \(is it Linux 6\.12\?\)"
    with pytest.raises(MachineError, match=why):
        build.build(quietly, source)
    assert [path.name for path in cache.iterdir()] == ["lock"]


@pytest.mark.usefixtures("all_tools")
def test_naming_another_source_builds_again_and_the_result_is_the_kernel(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "linux-6.12.9.tar"
    source.write_bytes(b"sources")
    built: list[Path | None] = []

    def compile_it(work: Path, tarball: Path | None, progress: Callable[[str, int, int], None]) -> Path:
        built.append(tarball)
        return put(cache, source=build._name(source))

    monkeypatch.setattr(build, "_build", compile_it)
    assert build.build(quietly, source) == build.require()
    assert build.build(quietly, source) == build.build(quietly) == build.require()
    assert built == [source]
    source.write_bytes(b"other sources")
    monkeypatch.setattr(build, "_build", lambda work, tarball, progress: Path("built anew"))
    assert build.build(quietly, source) == Path("built anew")


@pytest.mark.lab
def test_the_kernel_says_what_it_was_built_from(lab: Path) -> None:
    said = build.describe(lab)
    assert said["version"].startswith("6.12.")
    assert said["source"]
    assert said["key"] == lab.parent.name == build._key()
