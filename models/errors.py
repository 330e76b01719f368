"""The error tree. Every message names the remedy; the command line maps each class to its exit code."""

from __future__ import annotations

import shlex


class CockpitError(Exception):
    """Base of every error Cockpit raises on purpose. `exit_code` is what the command line exits with."""

    exit_code = 1


class InputError(CockpitError):
    """What the user handed in cannot be used (a file that is no WAV, an empty text)."""

    exit_code = 2


class ConfigError(CockpitError):
    """A profile or registry is wrong. The message holds file:line:column for every fault found."""

    exit_code = 2


class StartupError(CockpitError):
    """Cockpit cannot start as asked. Never answered by a silent fallback."""

    exit_code = 3


def fetch_command(*names: str, accept_licence: bool = False, profile: str | None = None) -> str:
    """The one command that mends models: it fetches what is missing and builds what is not as it should be. profile:
    the one whose own registry knows them.
    """
    licence = ("--accept-licence",) if accept_licence else ()
    return " ".join(("cockpit models fetch --build", *licence, *_of(profile), *names))


def validate_command(*names: str, profile: str | None = None) -> str:
    """The command after which models may be served."""
    return " ".join(("cockpit models validate", *_of(profile), *names))


def _of(profile: str | None) -> tuple[str, ...]:
    return () if profile is None else ("--profile", shlex.quote(profile))


class ModelUnusable(StartupError):
    """A stored model cannot be loaded. The message names the command that mends it."""


class ModelMissing(ModelUnusable):
    """A model is not fetched or not built."""


class FingerprintMismatch(ModelUnusable):
    """A built model was made for another device, driver, runtime or source."""


class ModelDamaged(ModelUnusable):
    """A file of a model is not as it was fetched or built: cut off, overwritten, replaced or gone."""


class TokenizerMismatch(ModelUnusable):
    """A model's tokenizer gives other ids than its checkpoint's. The message names the first difference."""


class LibraryMissing(ModelUnusable):
    """A package that a model needs is not installed, or in another version. The message names both."""


class NotValidated(ModelUnusable):
    """A model is built as it should be, but was not seen to work on this machine as it is now."""


class PackRefused(StartupError):
    """A pack of models, or a signature beside a model, is not taken. What was there before is kept."""


class DeviceUnavailable(StartupError):
    """The audio or compute device that was asked for is not there, or cannot be used as asked."""


class DeviceAbsent(DeviceUnavailable):
    """A device, or a service that stands for one, is not there now and may come (back): a microphone, a speaker, a GPU,
    the databroker. A process that stays waits for it and tries again.
    """

    exit_code = 6


class GpuAbsent(DeviceAbsent):
    """The driver answers, or is to come, and shows no GPU."""


class BrokerAbsent(DeviceAbsent):
    """Nobody listens where the car's signals are to be had."""


class FetchError(CockpitError):
    """A download failed or did not match its sha256. What was there before is kept."""

    exit_code = 4
