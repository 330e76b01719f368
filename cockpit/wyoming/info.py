"""What a client is told is there: the models that are loaded, by their names in the registry, and their languages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wyoming.info import (
    AsrModel,
    AsrProgram,
    Attribution,
    HandleModel,
    HandleProgram,
    Info,
    IntentModel,
    IntentProgram,
    TtsProgram,
    TtsVoice,
)

from cockpit import __version__
from models.store.registry import HuggingFaceSource, ModelEntry, PackageSource, Registry
from pipeline.frames import Language

PROGRAM = "cockpit"
"""The name of each program that `info` lists."""
_OWN = Attribution("Cockpit", "https://pypi.org/project/cockpit-voice/")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What this process has loaded, by names in the registry. llm: what chooses where a command's words do not."""

    registry: Registry
    asr: str
    languages: tuple[Language, ...]
    voices: Mapping[Language, str]
    llm: str

    def voice_names(self) -> dict[str, tuple[Language, ...]]:
        """Each voice with the languages that it speaks."""
        names: dict[str, tuple[Language, ...]] = {}
        for language, name in self.voices.items():
            names[name] = (*names.get(name, ()), language)
        return names

    def info(self, *, handle: bool) -> Info:
        """handle: whether commands act on the car."""
        languages: list[str] = list(self.languages)
        asr = AsrModel(**self._artifact(self.asr), languages=languages)
        voices = [
            TtsVoice(**self._artifact(name), languages=list(spoken)) for name, spoken in self.voice_names().items()
        ]
        intent = IntentModel(**_program("what the words of a command mean; nothing is done"), languages=languages)
        doing = HandleModel(**self._artifact(self.llm), languages=languages)
        return Info(
            asr=[AsrProgram(**_program("speech recognition"), models=[asr])],
            tts=[TtsProgram(**_program("voices"), voices=voices, supports_synthesize_streaming=True)],
            intent=[IntentProgram(**_program("commands to the car, recognised"), models=[intent])],
            handle=[HandleProgram(**_program("commands to the car, done"), models=[doing])] if handle else [],
        )

    def _artifact(self, name: str) -> dict[str, Any]:
        entry = self.registry.get(name)
        return {
            "name": name,
            "attribution": _source(self.registry.source_entry(name)),
            "installed": True,
            "description": f"{entry.summary}; licence: {entry.licence}",
            "version": None,
        }


def _source(entry: ModelEntry) -> Attribution:
    """Where the first file of a model comes from."""
    for source in next(iter(entry.files.values())).sources:
        if isinstance(source, HuggingFaceSource):
            return Attribution(source.repo, f"https://huggingface.co/{source.repo}")
        if isinstance(source, PackageSource):
            package = source.parts[0].package
            return Attribution(package, f"https://pypi.org/project/{package}/")
    return _OWN


def _program(description: str) -> dict[str, Any]:
    return {
        "name": PROGRAM,
        "attribution": _OWN,
        "installed": True,
        "description": description,
        "version": __version__,
    }
