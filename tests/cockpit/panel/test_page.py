"""The page in a real Chromium: at a head unit's size and on a phone, by pointer, by key, and for a screen reader."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cockpit.headunit.stream import EventStream
from tests.support.fake_chain import utterance
from tests.support.headunit.browser import CHROMIUM, Browser
from tests.support.headunit.panel import ServedPanel
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
FITS = """(() => { const main = document.querySelector("main");
    return document.documentElement.scrollWidth <= innerWidth && main.scrollWidth <= main.clientWidth; })()"""
BOX = """(() => { const at = document.querySelector("%s").getBoundingClientRect();
    return [at.left, at.top, at.right, at.bottom]; })()"""


@pytest.fixture(scope="module")
def browser(served: ServedPanel) -> Iterator[Browser]:
    """One for all tests of this module."""
    with Browser() as made:
        yield made
        assert made.faults == [], "the page's console is silent, and the policy (CSP) refused nothing"
        foreign = [url for url in made.asked if not url.startswith((served.origin, "about:"))]
        assert foreign == [], "nothing is fetched from elsewhere"


@pytest.fixture
def page(served: ServedPanel, browser: Browser) -> Browser:
    """The driver's view at a head unit's size, with a connection."""
    browser.open("about:blank", 1280, 480)
    browser.open(served.address, 1280, 480)
    until(lambda: browser.text("#state") == "Ready")
    if browser.run("document.querySelector('#drive').hidden"):
        browser.run("document.querySelector('#tab-drive').click()")
    return browser


def shown_view(page: Browser) -> str:
    return str(page.run("document.querySelector('[role=tabpanel]:not([hidden])').id"))


def test_a_driver_sees_what_was_heard_done_and_said_without_scrolling(page: Browser, served: ServedPanel) -> None:
    served.chain.runtime.listen(utterance())
    until(lambda: page.text("#reply") == "The rear defroster is on.")
    assert page.text("#heard") == "Turn on the rear defroster."
    assert page.text("#calls li.done") == "set defrost · area rear, on true · done"
    until(lambda: page.text("#state") == "Ready")
    for selector in ("#state", "#reply", "#talk", "#cancel", "#mute", "#language", "#volume"):
        left, top, right, bottom = page.run(BOX % selector)
        assert 0 <= left < right <= 1280, selector
        assert 0 <= top < bottom <= 480, selector
    assert "token" not in page.run("location.href"), "the token does not stay in the address"


def test_an_answer_in_chinese_is_marked_as_such_and_a_refusal_says_why(page: Browser, served: ServedPanel) -> None:
    served.chain.cabin.ask("把空调温度调到一百度", "zh")
    until(lambda: page.text("#calls li.refused"))
    assert "out_of_range" in page.text("#calls li.refused")
    until(lambda: page.run("document.querySelector('#reply').lang") == "zh")


def test_push_to_talk_by_key_is_pressed_while_the_key_is_and_not_longer(page: Browser, served: ServedPanel) -> None:
    orders = served.chain.runtime.by_hand._orders
    orders.clear()
    page.run("document.querySelector('#talk').focus()")
    page.key(" ", up=False)
    until(lambda: list(orders) == ["press"])
    assert page.run("document.querySelector('#talk').getAttribute('aria-pressed')") == "true"
    page.key(" ", down=False)
    until(lambda: list(orders) == ["press", "release"])
    until(lambda: page.run("document.querySelector('#talk').getAttribute('aria-pressed')") == "false")
    orders.clear()


def test_push_to_talk_by_pointer_and_let_go_outside_the_button(page: Browser, served: ServedPanel) -> None:
    orders = served.chain.runtime.by_hand._orders
    orders.clear()
    left, top, right, bottom = page.run(BOX % "#talk")
    x, y = (left + right) / 2, (top + bottom) / 2
    page.send("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
    until(lambda: list(orders) == ["press"])
    page.send("Input.dispatchMouseEvent", type="mouseReleased", x=5, y=5, button="left", clickCount=1)
    until(lambda: list(orders) == ["press", "release"])
    orders.clear()


def test_mute_is_shown_as_it_is_in_the_process(page: Browser, served: ServedPanel) -> None:
    page.run("document.querySelector('#mute').click()")
    until(lambda: "mute" in served.chain.runtime.by_hand._orders)
    served.chain.runtime.listen(utterance())  # carried out with the next frame
    until(lambda: page.run("document.querySelector('#mute').getAttribute('aria-pressed')") == "true")
    assert page.text("#modes") == "Microphone muted"
    assert page.run("document.querySelector('#talk').disabled")
    page.run("document.querySelector('#mute').click()")
    until(lambda: "unmute" in served.chain.runtime.by_hand._orders)
    served.chain.runtime.listen(utterance())
    until(lambda: page.run("document.querySelector('#talk').disabled") is False)


def test_what_this_process_lacks_is_no_control(page: Browser) -> None:
    assert page.run("document.querySelector('#volume').disabled"), "no speaker here"


def test_the_engineers_view_by_key(page: Browser, served: ServedPanel) -> None:
    page.run("document.querySelector('#tab-drive').focus()")
    page.key("ArrowRight")
    assert shown_view(page) == "engineer"
    until(lambda: page.text("#tasks tbody tr td") == "navigation_task")
    assert page.text("#alerts") == "none"
    assert page.text("#channels tbody td") == "frames"
    assert "x8 of x16" in page.text("#gpu")
    assert page.text("#profile").startswith("cpu on cpu, Cockpit ")
    assert '"device": "cpu"' in page.text("#values")
    served.chain.service.begin("no_speaker", "unplugged")
    until(lambda: page.text("#alerts") == "no_speaker: unplugged")
    served.chain.service.end("no_speaker")
    served.chain.runtime.listen(utterance())
    until(lambda: page.text("#turns tbody td:nth-child(2)") == "Turn on the rear defroster.")
    assert "silence" in page.run("document.querySelector('#turns .bar').getAttribute('aria-label')")
    page.key("ArrowLeft")
    assert shown_view(page) == "drive"


def test_words_to_try_are_said_to_the_car(page: Browser, served: ServedPanel) -> None:
    page.run("document.querySelector('#tab-engineer').click()")
    page.run("document.querySelector('#text').focus()")
    page.send("Input.insertText", text="turn off the rear defroster")
    page.key("Enter")
    until(lambda: page.text("#turns tbody td:nth-child(2)") == "turn off the rear defroster")
    page.run("document.querySelector('#tab-drive').click()")


@pytest.mark.parametrize(("width", "height", "phone"), [(1280, 480, False), (390, 844, True)])
def test_neither_view_is_wider_than_its_screen(
    page: Browser, served: ServedPanel, width: int, height: int, phone: bool
) -> None:
    page.open(served.origin, width, height, phone=phone)
    until(lambda: page.text("#state") == "Ready")
    served.chain.cabin.ask("set the driver temperature to 22 degrees and open the sunroof", "en")
    until(lambda: "sunroof" in page.text("#reply"))
    assert page.run(FITS)
    page.run("document.querySelector('#tab-engineer').click()")
    until(lambda: page.text("#profile"))
    until(lambda: page.text("#turns tbody td"))
    assert page.run(FITS)
    page.run("document.querySelector('#tab-drive').click()")


def test_a_screen_reader_finds_names_for_everything_that_can_be_used(page: Browser) -> None:
    for view in ("drive", "engineer"):
        page.run(f"document.querySelector('#tab-{view}').click()")
        until(lambda view=view: shown_view(page) == view)  # type: ignore[misc]
        roles = {"button", "tab", "combobox", "slider", "textbox", "meter", "tabpanel", "group"}
        found = [(role, name) for role, name in page.named() if role in roles]
        assert [role for role, name in found if not name] in ([], ["group"]), "the fold of all values names itself"
        expected = {"drive": ("button", "Hold to talk"), "engineer": ("textbox", "Say in words")}[view]
        assert expected in found
    page.run("document.querySelector('#tab-drive').click()")


def test_it_says_so_when_the_car_is_gone_and_comes_back_by_itself(
    page: Browser, served: ServedPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, faults = served.chain.events, list(page.faults)

    def gone(*_kept: object, **_named: object) -> None:
        raise RuntimeError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(EventStream, "subscribe", gone)
        for subscription in events._subscriptions:
            subscription.end()
        until(lambda: page.text("#state") == "Not connected")
        assert page.run("document.querySelector('#cancel').disabled")
    until(lambda: page.text("#state") == "Ready")
    page.faults[:] = faults  # the console tells of the status that was refused
