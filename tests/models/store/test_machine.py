"""What of a machine a validation is bound to: each field is read, and each one that changes is named."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from models.store import machine
from models.store.machine import NONE, cpu_fields, fields_sha3, fields_that_differ, gpu_fields
from models.store.validation import Answer, Validation

X86 = """processor\t: 0
model name\t: AMD EPYC 9654
flags\t\t: fpu avx avx2 fma f16c avx512f avx512_vnni svm

processor\t: 1
model name\t: another
flags\t\t: amx_tile
"""
ARM = """processor\t: 0
Features\t: fp asimd asimddp i8mm aes
CPU implementer\t: 0x41
CPU variant\t: 0x0
CPU part\t: 0xd42
"""


class FakeNvml(ModuleType):
    """As much of pynvml as is asked; `values` by function, an absent one is not supported there."""

    class NVMLError(Exception):
        pass

    def __init__(self, **values: Any) -> None:
        super().__init__("pynvml")
        self.values = values

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def asked(*_: object) -> Any:
            if name not in self.values:
                raise self.NVMLError(name)
            return self.values[name]

        return asked


H200 = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlDeviceGetHandleByIndex": 1,
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetNumGpuCores": 16896,
    "nvmlDeviceGetMemoryBusWidth": 6144,
    "nvmlSystemGetDriverVersion": "580.95",
    "nvmlDeviceGetVbiosVersion": "96.00.A0",
    "nvmlSystemGetCudaDriverVersion_v2": 13000,
}


def root_with(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_processor_is_known_by_its_name_and_the_sets_that_kernels_choose_by(tmp_path: Path) -> None:
    edac = "sys/devices/system/edac/mc/mc0"
    where = {"dimm0": "channel 0 slot 0", "dimm1": "channel 0 slot 1", "dimm2": "channel 1 slot 0"}
    files = {f"{edac}/{name}/dimm_location": text for name, text in where.items()}
    files |= {"proc/cpuinfo": X86, "sys/class/dmi/id/bios_version": "1.4b\n"}
    found = cpu_fields(root_with(tmp_path, files))
    assert found["cpu"] == "AMD EPYC 9654"
    assert found["instruction_sets"] == "avx avx2 avx512_vnni avx512f f16c fma"
    assert (found["firmware"], found["memory_channels"]) == ("1.4b", "2")


def test_an_arm_board_and_one_that_says_nothing(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": ARM, "etc/nv_tegra_release": "# R36 (release), REVISION: 4.0\nmore\n"}
    found = cpu_fields(root_with(tmp_path / "arm", files))
    assert (found["cpu"], found["instruction_sets"]) == ("0x41 0xd42 0x0", "asimd asimddp i8mm")
    assert found["firmware"] == "# R36 (release), REVISION: 4.0"
    silent = cpu_fields(tmp_path / "nothing")
    assert {silent["cpu"], silent["instruction_sets"], silent["firmware"], silent["memory_channels"]} == {NONE}


def test_a_gpu_says_what_it_is() -> None:
    found = gpu_fields(FakeNvml(**H200))
    assert found["gpu"] == "NVIDIA H200"
    assert (found["compute_capability"], found["sm_count"], found["memory_bus_bits"]) == ("9.0", "132", "6144")
    assert (found["driver"], found["vbios"], found["cuda"]) == ("580.95", "96.00.A0", "13.0")
    assert {"cuda_runtime", "tensorrt"} <= found.keys()


def test_what_a_gpu_does_not_report_is_none_and_no_gpu_is_no_error() -> None:
    few = {name: H200[name] for name in ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName")}
    found = gpu_fields(FakeNvml(**few))
    assert (found["gpu"], found["vbios"], found["sm_count"]) == ("NVIDIA H200", NONE, NONE)
    for nvml in (None, FakeNvml(), FakeNvml(nvmlInit=None, nvmlShutdown=None)):
        assert gpu_fields(nvml)["gpu"] == NONE


GPU = gpu_fields(FakeNvml(**H200))


@pytest.mark.parametrize("field", sorted(GPU))
def test_every_field_that_changes_is_named_with_both_values(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed driver, firmware or library: the validation does not hold, and says what differs."""
    fields = cpu_fields(machine.ROOT) | GPU
    made = Validation("m", "c", fields, fields_sha3(fields), (Answer("a", "b", "b", True),), 1, 1, 1, 1, False, "now")
    assert made.against("c", fields) == ""
    changed = fields | {field: "other"}
    assert fields_that_differ(fields, changed) == [f"{field}: expected {fields[field]}, got other"]
    assert f"{field}: expected {fields[field]}, got other" in made.against("c", changed)
    assert "has changed" in made.against("d", fields)


def test_the_fingerprint_is_of_names_and_values_and_not_of_their_order() -> None:
    assert fields_sha3({"a": "1", "b": "2"}) == fields_sha3({"b": "2", "a": "1"})
    assert fields_sha3({"a": "1b", "c": "2"}) != fields_sha3({"a": "1", "bc": "2"})
    assert len(fields_sha3({})) == 64


def test_a_validation_that_was_written_over_is_none(tmp_path: Path) -> None:
    made = Validation("m", "c", {"cpu": "x"}, "0" * 64, (Answer("a", "", "b", True),), 1, 1, 1, 1, False, "now")
    made.write(tmp_path)
    assert Validation.read(tmp_path) == made
    path = tmp_path / "validation.json"
    for text in (path.read_text().replace('"c"', '"d"'), path.read_text()[:-9], "", "[1]"):
        path.write_text(text)
        assert Validation.read(tmp_path) is None
    assert [file.name for file in tmp_path.iterdir()] == ["validation.json"]
