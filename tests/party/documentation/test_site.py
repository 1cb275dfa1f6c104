"""The documentation site: it builds strictly, every link and anchor leads somewhere, and it fetches nothing."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from real_browser import AXE, audit, prefer, started

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BESIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RELEASE.md", "CHANGELOG.md")]
"""Read where the code is, not on the site."""
SOURCES = ("benchmarks", "deploy", "docs", "dpswd", "private_curator", "proto", "public_client", "shared", "tests")
UNREAD = ("CHANGELOG.md", "requirements.lock")  # what was, and what others have written
ELSEWHERE = ("http:", "https:", "mailto:", "data:")


class Page(HTMLParser):
    """What one built page is made of: its anchors, its links, and what a browser loads for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loaded += [given[name] for name in ("src", "href") if name in given and tag != "a"]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return made


@pytest.fixture(scope="module")
def built(site) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def html_of(site: Path, page: Path) -> Path:
    where = site / page.relative_to(DOCS)
    return where.with_name("index.html") if where.name == "README.md" else where.with_suffix(".html")


@pytest.mark.long
def test_every_page_is_on_the_site(site, built):
    assert {html_of(site, page) for page in PAGES} == set(built) - {site / "404.html"}


@pytest.mark.long
def test_every_link_leads_to_a_page_and_an_anchor_that_are_there(site, built):
    for page in built.values():
        if page.path.name == "404.html":  # its links begin at the root of a server
            continue
        for link in page.links:
            if link.startswith(ELSEWHERE):
                continue
            parts = urlsplit(link)
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.path.relative_to(site)}: {link}"
            if target in built:
                assert unquote(parts.fragment) in built[target].anchors, f"{page.path.relative_to(site)}: {link}"


@pytest.mark.long
def test_a_browser_loads_nothing_from_elsewhere(site, built):
    for page in built.values():
        for loaded in page.loaded:
            assert not loaded.startswith(("http:", "https:", "//")), f"{page.path.relative_to(site)}: {loaded}"
            if page.path.name != "404.html":
                assert (page.path.parent / urlsplit(loaded).path).exists(), f"{page.path.relative_to(site)}: {loaded}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\W*https?:", sheet.read_text()), sheet.name


@pytest.mark.long
def test_search_finds_every_page(site):
    index = (site / "search" / "search_index.json").read_text()
    for page in PAGES:
        if page != DOCS / "README.md":
            assert f'"location":"{html_of(site, page).relative_to(site)}"' in index or page.name == "README.md", page


@contextlib.contextmanager
def served(site):
    """The site's address on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.timeout(7200)
@pytest.mark.skipif(AXE is None, reason="NO AXE LOOKED AT THE SITE: DPSWD_AXE names no axe.min.js")
def test_axe_finds_nothing_on_any_page_in_light_and_dark(site, built):
    """Slow on a busy machine: two hundred pages, each some seconds."""
    with served(site) as address, started() as browser:
        for scheme, name in (("light", "default"), ("dark", "slate")):
            prefer(browser, scheme)
            for page in built:
                browser.get(f"{address}/{page.relative_to(site)}")  # the page of what is not found has its style there
                browser.execute_script("localStorage.clear()")  # the theme keeps the scheme that it met first
                browser.refresh()
                assert browser.execute_script("return document.body.dataset.mdColorScheme") == name
                audit(browser)


def test_a_search_for_install_finds_the_page_first(site):
    from selenium.webdriver.common.by import By

    with served(site) as address, started() as browser:
        browser.implicitly_wait(60)
        browser.get(f"{address}/operator/records.html?q=install")
        links = browser.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
        assert "/install.html" in links[0].get_attribute("href")


@pytest.mark.parametrize("page", BESIDE, ids=lambda page: page.name)
@pytest.mark.long
def test_links_of_the_pages_beside_the_code(site, built, page):
    for target, anchor in re.findall(r"\]\(([^)#:]+)(?:#([^)]+))?\)", page.read_text()):
        assert (ROOT / target).exists(), target
        assert not anchor or anchor in built[html_of(site, ROOT / target)].anchors, f"{target}#{anchor}"


@pytest.mark.long
def test_every_page_that_a_file_names_is_there(site, built):
    """Also in messages, comments, alerts and manifests: ``docs/...``, with its anchor if it has one."""
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*")]
    for path in [*ROOT.glob("*"), *files]:
        if path.name in UNREAD or path.suffix in (".pyc", ".png", ".whl") or not path.is_file():
            continue
        name = path.relative_to(ROOT)
        text = path.read_bytes().decode(errors="replace")
        for target, anchor, cut in re.findall(r"(?<![\w/.])(docs/[\w./-]*\w)(?:#([\w-]+))?(\{?)", text):
            assert any(ROOT.glob(f"{target}*")), f"{name} names {target}"
            if anchor and not cut:
                assert anchor in built[html_of(site, ROOT / target)].anchors, f"{name} names {target}#{anchor}"
