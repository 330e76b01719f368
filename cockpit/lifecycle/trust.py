"""Whom a profile trusts to sign models, and which of the models here came by somebody else's pack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.errors import StartupError
from models.pack.record import unfinished, untrusted
from models.store.store import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from cockpit.profile.sections import Profile


def trusted_keys(profile: Profile) -> dict[str, Ed25519PublicKey]:
    """Id -> key, of those that a profile names. Raises InputError."""
    from models.pack.signing import read_trusted

    return read_trusted(profile.models.trusted_keys)


def untrusted_models(store: Store, profile: Profile) -> dict[str, str]:
    """Model -> why it is not trusted, of the profile's models that came by a pack. Raises StartupError where a pack was
    not installed to its end: old and new models are not mixed.
    """
    if half := unfinished(store.root):
        option = "" if store.profile is None else f" --profile {store.profile}"
        raise StartupError(f"the pack {half[0]} was not installed to its end; run: cockpit models refresh{option}")
    if not (store.root / "packs").is_dir():
        return {}
    return untrusted(store, profile.model_names, set(trusted_keys(profile)))
