"""The console as its operator meets it: the command in a process of its own, and a real browser in front of it.

With DPSWD_CONSOLE_PICTURES=FOLDER the pictures of docs/operator/console.md are written there; with DPSWD_AXE=FILE, the
axe.min.js of axe-core, that finds nothing to say about any page.
"""

from __future__ import annotations

import contextlib
import http.server
import io
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from console_home import home_with_a_past
from exploring import EXPLORING
from forked_starts import suspended
from PIL import Image
from real_browser import audit, prefer, started

from dpswd.private_curator.books.figures import Decision
from dpswd.private_curator.console.rendering import PLACES
from dpswd.private_curator.operator.record import Record
from dpswd.public_client.curator.identity import make_identity
from dpswd.shared.certificates import request_fingerprint
from dpswd.shared.protocol.publications import Publication

PICTURED = ((1200, "light"), (360, "dark"))
LEAST_CONTRAST = 4.5
"""Of text against what is behind it: WCAG 2.2, level AA."""
PALE_TEXT = """
const parsed = text => text.match(/[0-9.]+/g).map(Number);
const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => [r, g, b].map(v => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = element => {
    for (let at = element; at; at = at.parentElement) {
        const colour = parsed(getComputedStyle(at).backgroundColor);
        if (colour.length < 4 || colour[3] > 0) return light(colour);
    }
    return 1;
};
const speaks = e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim());
return [...document.querySelectorAll("body *")]
    .filter(e => e.checkVisibility() && !e.closest("svg") && speaks(e))
    .map(e => [light(parsed(getComputedStyle(e).color)), behind(e), e.tagName + " " + e.textContent.trim()])
    .map(([a, b, text]) => [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text])
    .filter(([contrast]) => contrast < arguments[0]);
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return home_with_a_past(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def command(home):
    """See `running_console`."""
    with running_console(home) as running:
        yield running


@contextlib.contextmanager
def running_console(home):
    """The running command, its address, and the address that signs in once."""
    words = ["--as", "Dr. Weiss", "console", "--home", str(home.path), "--address", "127.0.0.1:0"]
    with suspended():  # what it loads is looked at below
        running = subprocess.Popen(
            [sys.executable, "-m", "dpswd.private_curator.cli", *words],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        listens, signs_in = running.stdout.readline(), running.stdout.readline()
        address = re.fullmatch(r"the console listens on (127\.0\.0\.1:\d+)\n", listens)[1]
        once = re.fullmatch(rf"sign in once at (http://{address}/sign-in\?token=[\w-]{{43}})\n", signs_in)[1]
        yield running, f"http://{address}", once
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=30) in (0, -signal.SIGTERM)


@pytest.fixture(scope="module")
def browser():
    with started() as driver:
        driver.implicitly_wait(5)
        yield driver


@contextlib.contextmanager
def somebody_elses_page(target: str):
    """A site on another port, which a browser counts as the same site as the console: the cookie goes along."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            form = f'<form method="post" action="{target}"><input name="reason" value="x"></form>'
            self.wfile.write(f"{form}<script>document.forms[0].submit()</script>".encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as site:
        threading.Thread(target=site.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{site.server_port}/"
        finally:
            site.shutdown()


def test_an_operator_looks_decides_and_signs_out(browser, command, home):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    running, console, once = command
    find, arrived = looking_with(browser)

    def press(*keys: str):
        browser.switch_to.active_element.send_keys(*keys)

    def sign_in():
        """By the button that has the focus: a browser gives it with the page's first picture, after its load."""
        browser.get(once)
        find("button:focus")
        press(Keys.ENTER)

    mapped = Path(f"/proc/{running.pid}/maps").read_text()
    assert "libtorch" not in mapped  # pages need no tensors: the process is small, and there at once
    sign_in()
    arrived("Overview")
    assert browser.get_cookie("dpswd-console")["httpOnly"]
    assert browser.execute_script("return document.cookie") == ""
    used = once.rpartition("=")[2]
    assert used not in running.stdout.readline()  # the next address is shown, for another browser

    # By keyboard alone: the first stop leads past the navigation, the next ones along it.
    press(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the content"
    press(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "main"

    _look_everywhere(browser, console, home)

    browser.get(f"{console}/budget")
    for name, words in (("epsilon", "12"), ("extend-reason", "a second study")):
        find(f"#{name}").send_keys(words)
    press(Keys.ENTER)
    arrived("Extend the budget?")
    assert "hardly a promise" in find("[role=alert]").text
    audit(browser)
    find("#typed").send_keys("yes", Keys.ENTER)
    arrived("That was not possible")
    assert "type exactly" in find("[role=alert]").text
    audit(browser)

    browser.get(f"{console}/clients")
    first = find("section[aria-labelledby=client-1]")
    pausing = next(each for each in first.find_elements(By.TAG_NAME, "summary") if each.text == "Pause")
    pausing.send_keys(Keys.ENTER)
    first.find_element(By.NAME, "reason").send_keys("holidays <b>", Keys.ENTER)
    arrived("ml-team is paused: nothing new is released to it.", ".notice")
    assert find("section[aria-labelledby=client-1] .pill").text == "paused"
    find("a[href^='/history?kind=refusal&client=']").click()
    arrived("History")
    assert find("#kind option:checked").text == "refusal"
    assert find("caption").text == "1 of 1 events"

    browser.get(f"{console}/requests")
    granted = find("input[name=epsilon]")
    granted.clear()
    granted.send_keys("0.2")
    find("input[name=reason]").send_keys("for the rerun alone")
    find("button[value=approve]").click()
    arrived("ml-team's request is cut: epsilon 0.2 is added.", ".notice")

    with somebody_elses_page(f"{console}/freeze") as elsewhere:
        browser.get(elsewhere)
        assert "comes from another page" in find("body").text
    browser.get(console)
    assert find(".pill").text == "open"

    find(".who button").click()
    arrived("Sign in")
    browser.back()
    browser.get(f"{console}/runs")
    arrived("Sign in")
    sign_in()
    assert "each is good once" in find("[role=alert]").text

    record = Record(home)
    assert record.clients[0].state == "paused"
    assert [asked.decision for asked in record.requests] == [Decision.CUT, Decision.CUT]
    acts = [(event.who, event.why) for event in record.history if event.kind in ("client-paused", "request-decided")]
    assert acts[-2:] == [("Dr. Weiss", "holidays <b>"), ("Dr. Weiss", "for the rerun alone")]


def looking_with(browser):
    """What finds an element, and what waits for a text: a page's heading, if nothing else is named."""
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    def find(selector: str):
        return browser.find_element(By.CSS_SELECTOR, selector)

    def arrived(text: str, selector: str = "h1"):
        """A form that was sent is answered by another page, in its time: of a loaded machine, a minute."""
        WebDriverWait(browser, 60, poll_frequency=0.1, ignored_exceptions=[StaleElementReferenceException]).until(
            lambda _: find(selector).text == text
        )

    return find, arrived


def test_an_operator_takes_a_client_in_extends_and_publishes(browser, tmp_path):
    """A small hospital with records: what is typed is what the commands take, what is refused leads to its place."""
    from published_site import CLIENT, Site
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    site, key, proposal = Site(tmp_path / "north"), tmp_path / "cardiology", tmp_path / "proposal.dpswd"
    fingerprint = request_fingerprint(make_identity("cardiology", key).read_bytes())
    proposal.write_bytes(site.proposal().to_file())
    find, arrived = looking_with(browser)

    def fill(**words: str) -> None:
        """The fields with these ids; Enter in the last sends the form."""
        for name, text in words.items():
            find(f"#{name.replace('_', '-')}").send_keys(text)
        browser.switch_to.active_element.send_keys(Keys.ENTER)

    def limit(act: str, number: str) -> None:
        """Of the second client."""
        find(f"section[aria-labelledby=client-2] details:has(#{act}-2)").click()
        find(f"#{act}-2").clear()
        find(f"#{act}-2").send_keys(number)
        find(f"#reason-{act}-2").send_keys("agreed", Keys.ENTER)

    with running_console(site.home) as (_, console, once):
        browser.get(once)
        find("button").click()
        arrived("Overview")
        for typed, heading in (("0" * 64, "That was not possible"), (fingerprint[:16], "Clients")):
            browser.get(f"{console}/clients#approve")
            find("#request").send_keys(str(key / "client.csr"))
            fill(share="0.5", fingerprint=typed)
            arrived(heading)
        assert find(".notice").text.startswith("cardiology is added")
        limit("cap", "0.25")
        arrived("cardiology may spend at most epsilon 0.25 a day.", ".notice")
        limit("share", "2.5")
        arrived("The share of cardiology is epsilon 2.5.", ".notice")
        limit("share", "9")
        arrived("That was not possible")
        find("main a[href='/budget#extend']").click()
        arrived("Budget")
        assert find("h2:target").text == "Extend"
        fill(epsilon="3.5", extend_reason="minute 14")
        arrived("Extend the budget?")
        find("button.grave").click()
        arrived("Budget")
        arrived("The budget is extended to epsilon 3.5.", ".notice")

        browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
        browser.get(f"{console}/publication")
        find("#proposal").send_keys(str(proposal))
        find("#client").send_keys(CLIENT)
        find("#content button").click()
        find("#preview")
        audit(browser)
        fill(purpose="the spring study", typed="publish")
        WebDriverWait(browser, 300).until(lambda _: list(tmp_path.glob(f"{CLIENT}-????????.dpswd")))
    (made,) = tmp_path.glob(f"{CLIENT}-*.dpswd")
    assert Publication.read(made).problems(site.key) == []
    record = Record(site.home)
    assert [(each.name, each.share, each.caps) for each in record.clients[1:]] == [
        ("cardiology", 2.5, {"day": (0.25, 0.0)})
    ]
    assert (record.overview.epsilon, len(record.runs)) == (3.5, 1)


def test_a_page_shows_what_happens_elsewhere_and_keeps_what_is_typed(browser, home):
    """A console of its own: the module's has given its address away."""
    from selenium.webdriver.common.by import By

    _, arrived = looking_with(browser)

    def frozen_and_opened(path: str) -> None:
        for expected, act in (("frozen", "freeze"), ("open", "unfreeze")):
            with home.open_ledger() as books:
                getattr(books, act)(reason="from elsewhere")
            begin = time.monotonic()
            arrived(expected, "#state")  # five seconds of an idle machine
            print(f"{path} says {expected} after {time.monotonic() - begin:.1f} seconds")

    looked = "const done = arguments[0]; look().then(() => done(performance.getEntriesByType('resource').length))"
    with running_console(home) as (_, console, once):
        browser.get(once)
        browser.find_element(By.TAG_NAME, "button").click()
        for path, scripting in (("/", True), ("/history", True), ("/", False)):
            browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripting})
            browser.get(f"{console}{path}")
            frozen_and_opened(path)
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        browser.get(f"{console}/budget")
        reason = browser.find_element(By.ID, "freeze-reason")
        reason.send_keys("half a sen")
        with home.open_ledger() as books:
            books.freeze(reason="from elsewhere")
        asked = [browser.execute_async_script(looked) for _ in range(3)]
        assert len(set(asked)) == 1  # no request
        assert reason.get_attribute("value") == "half a sen"
        assert "while a form is filled in" in browser.find_element(By.ID, "live").text
        reason.clear()
        assert browser.execute_async_script(looked) > asked[0]
        assert browser.find_element(By.CSS_SELECTOR, "#state").text == "frozen"
        assert browser.find_element(By.ID, "unfreeze-reason").get_attribute("value") == ""
    browser.execute_async_script(looked)
    assert browser.find_element(By.CSS_SELECTOR, "#state").text == "NOT UP TO DATE"  # the console has ended
    with home.open_ledger() as books:
        books.unfreeze(reason="done")


def _look_everywhere(browser, console: str, home) -> None:
    """Every page in both schemes and at both widths: no way sideways, readable text, no script, no complaint.

    The width takes no part in a colour, nor the scheme in a width: all pairs of them are for `make test-exhaustive`.
    """
    pages = [path for path, _ in PLACES] + [f"/runs/{home.read_ledger().runs[1].run_id}"]
    pictures = os.environ.get("DPSWD_CONSOLE_PICTURES")
    for width, scheme in itertools.product((360, 1200), ("light", "dark")):
        if EXPLORING or (width, scheme) in PICTURED:
            prefer(browser, scheme)
            _measure(browser, width, 800)
            for path in pages:
                browser.get(f"{console}{path}")
                browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
                wide = browser.execute_script("return document.documentElement.scrollWidth")
                assert wide <= width, f"{path} is {wide} wide at {width}"
                assert browser.execute_script(PALE_TEXT, LEAST_CONTRAST) == [], (path, scheme)
                assert browser.execute_script("return [...document.scripts].map(s => s.src)") == [
                    f"{console}/console.js"
                ]
                audit(browser)
                if pictures and path == "/" and (width, scheme) in PICTURED:
                    browser.get(f"{console}{path}")
                    name = f"console-overview-{width}-{scheme}.png"
                    _measure(browser, width, browser.execute_script("return document.documentElement.scrollHeight"))
                    _keep(browser.get_screenshot_as_png(), Path(pictures) / name)
                    _measure(browser, width, 800)
    complaints = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert complaints == []


def _keep(picture: bytes, file: Path) -> None:
    """With few colours: a page is flat, and a fourth as large then."""
    with Image.open(io.BytesIO(picture)) as shown:
        shown.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(file, optimize=True)


def _measure(browser, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
