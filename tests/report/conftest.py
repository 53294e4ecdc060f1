"""Headless Chromium for tests of pages; ``PYTEST_REGIONAL_IMAGES=docs/images`` keeps their screenshots there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

_QUIET = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("chromium and chromedriver are not installed; `make services` installs them")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless", "--no-sandbox", f"--user-data-dir={tmp_path_factory.mktemp('profile')}", *_QUIET):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
    )
    yield browser
    browser.quit()


def keep_picture(picture: Path) -> None:
    """Copy a screenshot to where it is asked for."""
    kept = os.environ.get("PYTEST_REGIONAL_IMAGES")
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, kept)
