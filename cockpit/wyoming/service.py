"""The Wyoming server of one process, from what it has loaded."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from cockpit.api.app import Services
from cockpit.assemble import Assembly
from cockpit.profile.sections import Profile
from cockpit.runtime import Runtime
from cockpit.text_turns import TextAnswer
from cockpit.wyoming.connection import WyomingServices
from cockpit.wyoming.info import Loaded
from cockpit.wyoming.server import WyomingServer
from models.store.registry import Registry
from pipeline.frames import Language


def open_wyoming(
    profile: Profile, registry: Registry, assembly: Assembly, runtime: Runtime, api: Services, default: Path
) -> WyomingServer | None:
    """Serve as `profile.wyoming` says, None where it says off. api: whose speech and grants are served here too.

    default: where the socket goes for `auto`. Raises StartupError.
    """
    section = profile.wyoming
    if not section.opens or api.speech is None:
        return None
    voices: dict[Language, str] = {"en": profile.tts.en_voice, "zh": profile.tts.zh_voice}
    loaded = Loaded(registry, profile.asr.model, profile.asr.languages, voices, profile.llm.dialogue.model)

    def ask(text: str, language: Language, act: bool) -> Future[TextAnswer]:
        return runtime.ask_for_text(text, language, assembly.turn_ids.next(), act=act)

    path = None if section.socket == "off" else default if section.socket == "auto" else Path(section.socket)
    services = WyomingServices(loaded, api.speech, api.grants, ask, section.handle)
    server = WyomingServer.open(services, path, group=section.group, port=section.port, connections=section.connections)
    server.start()
    return server
