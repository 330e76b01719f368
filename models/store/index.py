"""Package indexes as pip is configured for them, so that whatever can install Cockpit can fetch its weights."""

from __future__ import annotations

import base64
import functools
import html.parser
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import IO

from models.errors import FetchError

TIMEOUT_S = 60.0
PYPI = "https://pypi.org/simple"
_SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"


def pip_indexes() -> tuple[str, ...]:
    """The simple indexes that pip would ask, over http or https; PyPI when it is told nothing."""
    found = [*(_pip_setting("index-url") or [PYPI]), *_pip_setting("extra-index-url")]
    return tuple(dict.fromkeys(url.rstrip("/") for url in found if url.startswith(("http://", "https://"))))


def _pip_setting(option: str) -> list[str]:
    """Values of one pip option: the environment's, else the configuration files'."""
    set_here = os.environ.get("PIP_" + option.upper().replace("-", "_"))
    if set_here:
        return set_here.split()
    values = re.findall(rf"^[\w:.]*\.{option}='(.*)'$", _pip_configuration(), re.MULTILINE)
    return [word for value in values[-1:] for word in value.replace("\\n", " ").split()]


@functools.cache
def _pip_configuration() -> str:
    command = [sys.executable, "-m", "pip", "config", "list"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@functools.cache
def _tls() -> ssl.SSLContext:
    """Certificates as pip has them, so that whatever can install Cockpit can fetch its weights."""
    told = [*_pip_setting("cert"), os.environ.get("REQUESTS_CA_BUNDLE", ""), os.environ.get("SSL_CERT_FILE", "")]
    return ssl.create_default_context(cafile=next((path for path in told if path), None))


def open_url(url: str, headers: dict[str, str]) -> IO[bytes]:
    """GET `url`. A user and password inside it become an authorisation header, which no redirect carries on."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"}:
        raise FetchError(f"refusing {url}: only http and https are fetched")
    request = urllib.request.Request(without_secret(url), headers={"User-Agent": "cockpit-voice", **headers})
    if parts.username:
        secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(secret.encode()).decode())
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=_tls()))
    opened: IO[bytes] = opener.open(request, timeout=TIMEOUT_S)
    return opened


def without_secret(url: str) -> str:
    """`url` as it may be shown: without user and password."""
    parts = urllib.parse.urlsplit(url)
    return str(urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the target of every link."""
        if tag == "a":
            self.hrefs.extend(value for key, value in attrs if key == "href" and value)


def wheel_url(index_url: str, package: str, wheel: str) -> str:
    """Where a simple index (JSON or HTML) says that the file `wheel` of `package` lies. Raises FetchError."""
    project = re.sub(r"[-_.]+", "-", package).lower()
    page_url = f"{index_url.rstrip('/')}/{project}/"
    shown = without_secret(page_url)
    try:
        with open_url(page_url, {"Accept": f"{_SIMPLE_JSON}, text/html;q=0.1"}) as response:
            body = response.read()
            kind = response.headers.get("Content-Type", "")  # type: ignore[attr-defined]
    except urllib.error.HTTPError as error:
        raise FetchError(f"{shown}: the index answered {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise FetchError(f"{shown}: {error}") from error
    if "json" in kind:
        urls = [item["url"] for item in json.loads(body).get("files", []) if item.get("filename") == wheel]
    else:
        links = _Links()
        links.feed(body.decode("utf-8", "replace"))
        urls = [href for href in links.hrefs if _file_name(href) == wheel]
    if not urls:
        raise FetchError(f"{shown}: the index does not list {wheel}")
    return str(urllib.parse.urljoin(page_url, urls[0]).partition("#")[0])


def _file_name(href: str) -> str:
    return urllib.parse.unquote(urllib.parse.urlsplit(href).path.rpartition("/")[2])
