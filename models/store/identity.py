"""The fingerprint of a model on a machine: sha3-256 over named fields, those of its build and those of the machine.

What belongs to the build decides whether it may be loaded (models/store/fingerprint.py): where it differs, the model is
built again. What belongs to the machine decides whether a validation still holds (models/store/validation.py): where it
differs, the model is validated again. A build moves from the bench to the car; a validation does not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from models.store.declared import CONFIG, layout_of
from models.store.fingerprint import Fingerprint
from models.store.machine import NONE, fields_sha3, machine_fields
from models.store.manifest import Manifest
from models.store.store import Store

_TOKENIZERS = ("tokenizer.json", "vocabulary.txt")


@dataclass(frozen=True, slots=True)
class Identity:
    """build: of the build that is here, or, without one, of that which would be made. differences: what forbids to load
    the build that is here. unvalidated: why it may not be served; "" when it may.
    """

    model: str
    build: dict[str, str]
    machine: dict[str, str]
    differences: tuple[str, ...]
    unvalidated: str

    @property
    def fields(self) -> dict[str, str]:
        """All of them; no name stands in both parts."""
        return self.build | self.machine

    @property
    def sha3(self) -> str:
        """The fingerprint."""
        return fields_sha3(self.fields)


def identity_of(store: Store, name: str) -> Identity:
    """What `name` is here. Raises ConfigError for an unknown model."""
    entry, machine = store.registry.get(name), machine_fields(store.runs_on(name))
    folder = store.folder(name)
    manifest = None if entry.build is None else Manifest.read(folder)
    if entry.build is None:
        build = {"model": name, "source": fields_sha3({file: spec.sha256 for file, spec in entry.files.items()})}
        differences: list[str] = []
    else:
        expected = store.expected_fingerprint(entry, None if manifest is None else manifest.fingerprint)
        found = expected if manifest is None else manifest.fingerprint
        build, differences = build_fields(found, folder, manifest), found.differences(expected)
    unvalidated = store.unvalidated(name) if store.is_built(name) else "it is not built"
    return Identity(name, build, machine, tuple(differences), unvalidated)


def build_fields(made: Fingerprint, folder: Path, manifest: Manifest | None) -> dict[str, str]:
    """The fields of a build: as the one in `folder` carries them, or (manifest None) as one made now would."""
    files = {} if manifest is None else manifest.files
    tokenizer = next((files[name].sha256 for name in _TOKENIZERS if name in files), NONE)
    return {
        "model": made.model,
        "source": fields_sha3(made.sources),
        "builder": made.builder,
        "builder_code": made.builder_sha256,
        "options": json.dumps(made.options, sort_keys=True),
        "built_beside_onnxruntime": made.onnxruntime,
        "made_for": made.device,
        "memory_layout": _memory_layout(made, folder),
        "tokenizer": tokenizer,
    }


def _memory_layout(made: Fingerprint, folder: Path) -> str:
    """The weights' format, and of a language model the shape of its keys and values for one token."""
    weights = str(made.options.get("quant") or made.options.get("precision") or "default")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return layout_of({"quant": weights} | {key: config[key] for key in ("layers", "kv_heads", "head_dim")})
    except (OSError, ValueError, KeyError, TypeError):
        return weights
