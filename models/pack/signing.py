"""Ed25519 signatures over statements, in DSSE envelopes (https://github.com/secure-systems-lab/dsse).

The statement inside has the form of in-toto's, as in the OpenSSF model signing specification: one sha256 a file. The
`model-signing` package itself knows no Ed25519 keys and brings a client of sigstore's servers along.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.errors import InputError, PackRefused
from models.store.registry import FileName, Sha256

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Literal["https://cockpit-voice/pack/v1"] = "https://cockpit-voice/pack/v1"
LARGEST_ENVELOPE_BYTES = 16 << 20


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Digest(_Frozen):
    sha256: Sha256


class Subject(_Frozen):
    """One file. name: its path in the pack."""

    name: str = Field(min_length=1, max_length=512)
    digest: Digest


class Contents(_Frozen):
    """What is signed beside the files. counter: of the pack of this name; a lower one is never installed after a higher
    one. models: those in it. size_bytes: file -> size, which bounds what is read.
    """

    format: Literal[1]
    name: FileName
    counter: int = Field(ge=0)
    models: list[FileName] = Field(min_length=1)
    size_bytes: dict[str, Annotated[int, Field(ge=0)]]


class Statement(BaseModel):
    """in-toto's Statement v1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)

    type: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: list[Subject]
    predicateType: Literal["https://cockpit-voice/pack/v1"] = PREDICATE_TYPE
    predicate: Contents

    @property
    def files(self) -> dict[str, tuple[int, str]]:
        """Path -> (bytes, sha256)."""
        return {item.name: (self.predicate.size_bytes[item.name], item.digest.sha256) for item in self.subject}

    def payload(self) -> bytes:
        """The bytes that are signed."""
        return json.dumps(self.model_dump(by_alias=True), sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Signed:
    """A statement as it was read. digest: sha256 of its bytes. signed_by: id of the trusted key that signed them, ""
    for none.
    """

    statement: Statement
    digest: str
    signed_by: str


# --- keys ----------------------------------------------------------------------------------------------------------
def new_key(private: Path, public: Path) -> str:
    """Make a pair of keys; returns the id. Raises InputError where a file is there already, or cannot be written."""
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shown = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for path in (private, public):
        if path.exists():
            raise InputError(f"{path} is there already: a key is never written over, name another file")
    for path, text, mode in ((private, secret, 0o600), (public, shown, 0o644)):
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(text)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error
    return key_id(key.public_key())


def key_id(key: Ed25519PublicKey) -> str:
    """sha256 of the public key, hex."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def read_private(path: Path) -> Ed25519PrivateKey:
    """Raises InputError."""
    try:
        if path.stat().st_mode & 0o077:
            raise InputError(f"{path} can be read by others; run: chmod 600 {path}")
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise InputError(f"the key {path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"{path} is no private key in PEM without a password; `cockpit pack keygen` makes one"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path} is no Ed25519 key; `cockpit pack keygen` makes one")
    return key


def read_trusted(paths: Iterable[Path]) -> dict[str, Ed25519PublicKey]:
    """Id -> key. Raises InputError."""
    keys = {}
    for path in paths:
        try:
            key = load_pem_public_key(path.read_bytes())
        except OSError as error:
            raise InputError(f"the trusted key {path} cannot be read: {error.strerror}") from error
        except (ValueError, UnsupportedAlgorithm) as error:
            raise InputError(f"{path} is no public key in PEM; `cockpit pack keygen` makes one") from error
        if not isinstance(key, Ed25519PublicKey):
            raise InputError(f"{path} is no Ed25519 key")
        keys[key_id(key)] = key
    return keys


# --- envelopes -----------------------------------------------------------------------------------------------------
def envelope(statement: Statement, key: Ed25519PrivateKey | None) -> bytes:
    """key: None leaves it unsigned."""
    payload = statement.payload()
    signatures = []
    if key is not None:
        made = base64.b64encode(key.sign(_encoded(payload))).decode()
        signatures.append({"keyid": key_id(key.public_key()), "sig": made})
    said = {"payloadType": PAYLOAD_TYPE, "payload": base64.b64encode(payload).decode(), "signatures": signatures}
    return json.dumps(said, indent=1).encode() + b"\n"


class _Signature(_Frozen):
    keyid: str
    sig: str


class _Envelope(_Frozen):
    payloadType: Literal["application/vnd.in-toto+json"]
    payload: str
    signatures: list[_Signature] = Field(max_length=16)


def opened(data: bytes, trusted: dict[str, Ed25519PublicKey], *, unsigned: bool) -> Signed:
    """Read an envelope. unsigned: take one without any signature too; a signature by a key that is not trusted, or one
    that is wrong, is never taken. Raises PackRefused.
    """
    try:
        read = _Envelope.model_validate_json(data)
        payload = base64.b64decode(read.payload, validate=True)
        signatures = {item.keyid: base64.b64decode(item.sig, validate=True) for item in read.signatures}
    except (ValidationError, binascii.Error, ValueError) as error:
        raise PackRefused("its signature file is damaged") from error
    signed_by = _signer(payload, signatures, trusted, unsigned=unsigned)
    try:
        statement = Statement.model_validate_json(payload)
    except ValidationError as error:
        raise PackRefused("its signature file is of another version of Cockpit, or damaged") from error
    names = [item.name for item in statement.subject]
    if len(set(names)) < len(names) or set(names) != set(statement.predicate.size_bytes):
        raise PackRefused("its list of files contradicts itself")
    return Signed(statement, hashlib.sha256(payload).hexdigest(), signed_by)


def _signer(
    payload: bytes, signatures: dict[str, bytes], trusted: dict[str, Ed25519PublicKey], *, unsigned: bool
) -> str:
    for name, signature in signatures.items():
        if name in trusted:
            try:
                trusted[name].verify(signature, _encoded(payload))
                return name
            except InvalidSignature as error:
                raise PackRefused(f"its signature by key {name[:16]} is wrong") from error
    if signatures:
        known = ", ".join(name[:16] for name in trusted) or "none"
        signers = ", ".join(name[:16] for name in signatures)
        raise PackRefused(f"it is signed by key {signers}, which is not trusted (models.trusted_keys: {known})")
    if not unsigned:
        raise PackRefused("it is not signed; sign it, or set models.unsigned: allow in the profile")
    return ""


def _encoded(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)
