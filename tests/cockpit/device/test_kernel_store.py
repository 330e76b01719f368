"""Cubins on disk: built once for the device, the driver and the compiler there are, and found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cockpit.device.cuda.driver import DeviceFacts
from cockpit.device.cuda.kernel_store import KernelSource, KernelStore
from models.errors import FingerprintMismatch, ModelMissing

HOPPER = DeviceFacts("H200", 132, 8, (9, 0), 13000, "uuid", 1)


def test_cubin_is_built_once_and_found_by_capability(tmp_path: Path) -> None:
    compiled: list[Any] = []

    def compiler(text: str, capability: tuple[int, int], defines: Sequence[str]) -> bytes:
        compiled.append((capability, tuple(defines)))
        return b"cubin"

    store = KernelStore(tmp_path, compiler)
    source = KernelSource("decode_rows.cu", ("HIDDEN=896", "TEXTS=8"))
    with pytest.raises(ModelMissing, match="cockpit kernels build"):
        store.load(source, HOPPER)
    store.build(source, HOPPER, "13.0")
    store.build(source, HOPPER, "13.0")
    assert compiled == [((9, 0), source.defines)]
    assert store.load(source, HOPPER) == b"cubin"
    for other in (replace(HOPPER, capability=(8, 7)), replace(HOPPER, capability=(10, 0))):
        with pytest.raises(ModelMissing, match="compute capability"):
            store.load(source, other)
    with pytest.raises(ModelMissing, match=r"decode_rows\.cu"):
        store.load(KernelSource("decode_rows.cu", ("HIDDEN=576", "TEXTS=8")), HOPPER)


def test_cubin_of_another_driver_or_nvrtc_is_built_anew(tmp_path: Path) -> None:
    images = iter((b"old", b"new driver", b"new nvrtc"))
    store = KernelStore(tmp_path, lambda *_: next(images))
    updated = replace(HOPPER, driver_version=13010)
    source = KernelSource("lane.cu")
    store.build(source, HOPPER, "13.0")
    with pytest.raises(FingerprintMismatch, match="cockpit kernels build"):
        store.load(source, updated)
    store.build(source, updated, "13.0")
    assert store.load(source, updated) == b"new driver"
    store.build(source, updated, "13.1")
    assert store.load(source, updated) == b"new nvrtc"
