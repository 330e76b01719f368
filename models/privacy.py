"""Nothing leaves the car: libraries that report home, or keep a queue of reports on disk, are told not to.

`import models` and `import cockpit` do it, so that it is done before any of these libraries is loaded. Child processes
inherit it.
"""

from __future__ import annotations

import os
import sys

SWITCHES = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime 1.32: events to a host, a device id and a queue in the user's cache
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub, which tokenizers depends on
    "DO_NOT_TRACK": "1",
}
"""Environment variable -> the value that switches reporting off."""


def switch_off_reports() -> None:
    """Set every switch, whatever the environment said; ONNX Runtime is told directly when it is loaded already."""
    os.environ.update(SWITCHES)
    runtime = sys.modules.get("onnxruntime")
    if runtime is not None:
        runtime.disable_telemetry_events()
