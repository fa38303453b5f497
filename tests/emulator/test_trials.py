"""What a kernel can do for a bed, tried part by part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from emulator import trials
from emulator.namespace import FOLDER
from emulator.trials import Trial
from tests.guest import run_guest

PARTS = ["veth", "netem", "tbf", "fq", "red", "redirect", "offloads"]


@pytest.mark.lab
@pytest.mark.usefixtures("lab")
def test_the_lab_kernel_has_everything() -> None:
    assert run_guest("trials") == dict.fromkeys(PARTS, "")


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_this_machine_is_tried_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEBED_STATE", str(tmp_path))
    found = {trial.name: trial for trial in trials.kernel()}
    assert list(found) == PARTS
    assert not found["veth"].why
    assert not found["offloads"].why
    for trial in found.values():
        assert bool(trial.mend()) == bool(trial.why)
    assert not list(FOLDER.glob(f"tb-doctor-{os.getpid()}*"))
    assert not list(tmp_path.iterdir())


def test_a_module_that_is_on_the_disk_is_to_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = Trial("redirect", "", "this kernel can't", ("cls_u32", "act_mirred"))
    monkeypatch.setattr(trials.platform, "release", lambda: str(tmp_path))
    assert lacks.mend() == f"run with --on virtual: Linux {tmp_path} comes without cls_u32 and act_mirred"
    for name in lacks.modules:
        (tmp_path / f"{name}.ko.xz").touch()
    assert lacks.mend() == "sudo modprobe -a cls_u32 act_mirred"
    assert Trial("redirect", "", "", lacks.modules).mend() == ""
