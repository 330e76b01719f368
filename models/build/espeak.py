"""espeak-ng from its wheel, taken as data: the shared library and the language data that Cockpit's voices need."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from models.errors import ConfigError

_CORE = ("phondata", "phonindex", "phontab", "intonations")
_LIBRARY = "libespeak-ng.so.1"


def build_espeak(package_dir: Path, out: Path, *, dictionaries: Sequence[str] = ("en", "cmn")) -> None:
    """Copy what is needed of an unzipped `espeakng-loader` wheel to `out`.

    package_dir: the folder that holds `libespeak-ng.so.1` and `espeak-ng-data/`. dictionaries: languages to keep, by
    the name of their `<name>_dict` file. Writes `libespeak-ng.so.1` and `espeak-ng-data/`. Raises ConfigError.
    """
    data = package_dir / "espeak-ng-data"
    names = [*_CORE, *(f"{name}_dict" for name in dictionaries)]
    missing = [str(path) for path in [package_dir / _LIBRARY, *(data / name for name in names)] if not path.is_file()]
    if missing:
        raise ConfigError(f"not an espeakng-loader package, or unknown languages; missing: {', '.join(missing)}")
    target = out / "espeak-ng-data"
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(package_dir / _LIBRARY, out / _LIBRARY)
    for name in names:
        shutil.copyfile(data / name, target / name)
    for folder in ("lang", "voices"):
        shutil.copytree(data / folder, target / folder, dirs_exist_ok=True)
