"""`cockpit pack`: models for a head unit without a network, signed; and `cockpit models sign`. See docs/pack.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cockpit.cli.output import JsonFlag, print_json
from cockpit.cli.values import profile_values
from cockpit.lifecycle.commands import ForProfile, Names, chosen, opened, told
from cockpit.lifecycle.trust import trusted_keys
from cockpit.lifecycle.validate import accept_new, validatable
from models.errors import InputError, NotValidated, StartupError
from models.store.store import Store

if TYPE_CHECKING:
    from cockpit.profile.sections import Profile
    from models.pack.signing import Signed

app = typer.Typer(
    help="Build, sign, verify and install packs of models for a head unit without a network.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
PackPath = Annotated[Path, typer.Argument(metavar="PACK", help="A folder, or an uncompressed .tar.")]
OfHeadUnit = Annotated[
    str,
    typer.Option("--profile", help="Whose trusted keys, registry and device count.", autocompletion=profile_values),
]


@app.command()
def keygen(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The private key; the public one goes to FILE.pub.")],
    json: JsonFlag = False,
) -> None:
    """Make a pair of Ed25519 keys. The private one is not encrypted: keep it off the head unit.

    The profile of a head unit names the public one in models.trusted_keys.
    """
    from models.pack.signing import new_key

    public = out.with_name(f"{out.name}.pub")
    made = new_key(out, public)
    if json:
        print_json({"private": out, "public": public, "key": made})
    else:
        print(f"key {made}\nprivate: {out}\npublic: {public} (name it in models.trusted_keys)")


@app.command()
def build(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The pack: a .tar, or a folder.")],
    names: Names = None,
    profile: ForProfile = None,
    counter: Annotated[
        int, typer.Option("--counter", min=0, help="Higher than that of every pack of this name before.")
    ] = 0,
    name: Annotated[str, typer.Option("--name", help="Packs of one name replace one another.")] = "models",
    key: Annotated[Path | None, typer.Option("--key", help="Private key to sign with: see `keygen`.")] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Leave it unsigned: few head units take it.")] = False,
    json: JsonFlag = False,
) -> None:
    """Pack built models: the named ones, a profile's, else the default set. Every byte is checked first."""
    from models.pack.build import build_pack
    from models.pack.signing import read_private

    if (key is None) == (not unsigned):
        raise InputError("name a key by --key, or say --unsigned")
    store, wanted = chosen(names, profile)
    models = [entry.name for entry in wanted]
    private = None if key is None else read_private(key)
    made = build_pack(store, models, out, name=name, counter=counter, key=private)
    size = sum(made.predicate.size_bytes.values())
    if json:
        said = {"pack": out, "name": name, "counter": counter, "models": models, "signed": key is not None}
        print_json({**said, "files": len(made.subject), "size_bytes": size})
    else:
        print(f"{out}: {name} {counter}, {len(models)} models, {len(made.subject)} files, {size / 1e6:.0f} MB")


@app.command()
def verify(pack: PackPath, profile: OfHeadUnit = "cpu", json: JsonFlag = False) -> None:
    """Check a pack's signature and every byte, and install nothing. Exit code 3 when it would be refused."""
    from models.pack.install import verify as verified
    from models.pack.reading import source_of

    _, loaded = _store(profile)
    signed = verified(source_of(pack), trusted_keys(loaded), unsigned=loaded.models.unsigned == "allow")
    _report(signed, json, state="good")


@app.command()
def install(pack: PackPath, profile: OfHeadUnit = "cpu", json: JsonFlag = False) -> None:
    """Check a pack, see its models work in a fresh process, and put them in place; the present ones become the former.

    All of its models are taken or none. A running `cockpit serve` keeps what it loaded until it is started anew. Exit
    code 3 when it is refused: a signature, an older pack, other files than signed, a build for other software.
    """
    from models.pack.install import install as installed
    from models.pack.reading import source_of

    store, loaded = _store(profile)
    keys, unsigned = trusted_keys(loaded), loaded.models.unsigned == "allow"

    def accept(name: str, folder: Path) -> None:
        if not json:
            typer.echo(f"{name}: checked, now seen to work", err=True)
        accept_new(store, name, folder)

    try:
        signed, done = installed(store, source_of(pack), keys, unsigned=unsigned, accept=accept)
    except OSError as error:
        raise StartupError(f"the pack was not installed, the old models stay: {error}") from error
    models = signed.statement.predicate.models
    waiting = [name for name in validatable(store, models) if store.unvalidated(name)]
    outcomes = told(store, waiting, cold=False, quiet=True) if waiting else []
    _report(signed, json, state="installed" if done else "already installed")
    if failed := [outcome for outcome in outcomes if outcome.fault]:
        raise NotValidated("\n".join(f"{outcome.model} failed its validation: {outcome.fault}" for outcome in failed))


def sign(
    names: Names = None,
    profile: ForProfile = None,
    key: Annotated[Path | None, typer.Option("--key", help="Private key: see `cockpit pack keygen`.")] = None,
    json: JsonFlag = False,
) -> None:
    """Leave a signature beside built models; `cockpit models verify --profile` compares it. Every byte is read."""
    from models.pack.build import sign_model
    from models.pack.signing import read_private

    if key is None:
        raise InputError("name the private key by --key; `cockpit pack keygen` makes one")
    store, wanted = chosen(names, profile)
    private = read_private(key)
    signed = {entry.name: sign_model(store, entry.name, private) for entry in wanted if entry.build is not None}
    if json:
        print_json({"signed": signed})
        return
    for name, path in signed.items():
        print(f"{name}: {path}")


def _store(profile: str) -> tuple[Store, Profile]:
    store, loaded = opened(profile)
    assert loaded is not None
    return store, loaded


def _report(signed: Signed, json: bool, *, state: str) -> None:
    said = signed.statement.predicate
    if json:
        shown = {"state": state, "name": said.name, "counter": said.counter, "models": said.models}
        print_json({**shown, "signed_by": signed.signed_by or None, "files": len(said.size_bytes)})
        return
    by = f"signed by key {signed.signed_by[:16]}" if signed.signed_by else "NOT SIGNED"
    print(f"{state}: {said.name} {said.counter}, {by}: {', '.join(said.models)}")
