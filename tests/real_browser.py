"""Chromium as a person has it before them, and what axe-core says of a page.

Both are looked for: chromium and chromedriver on PATH, and axe-core's axe.min.js where DPSWD_AXE says.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
AXE = os.environ.get("DPSWD_AXE")
_AXE_FINDS = """
const done = arguments[arguments.length - 1];
axe.run().then(found => done(found.violations.map(v => [v.id, v.nodes.map(n => n.html)])), error => done([`${error}`]));
"""


@contextlib.contextmanager
def started(*words: str) -> Iterator[Any]:
    """A browser without a window, with further words; a test without one is skipped, and says so."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("NO BROWSER LOOKED AT THIS: chromium and chromedriver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", *words):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(300)
    try:
        yield driver
    finally:
        driver.quit()


def prefer(browser: Any, scheme: str) -> None:
    """As a person whose system is "light" or "dark"."""
    preferred = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})


def audit(browser: Any) -> None:
    """Axe has nothing to say of the page that is shown; without axe nobody looks."""
    if AXE:
        browser.execute_script(Path(AXE).read_text())
        assert browser.execute_async_script(_AXE_FINDS) == [], browser.current_url
