"""A headless Chromium for tests of pages; they skip where there is none."""

import shutil
from collections.abc import Iterator

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> Iterator:
    """Yields a selenium driver, or skips the test."""
    webdriver = pytest.importorskip("selenium.webdriver")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip(
            "no Chromium with chromedriver here (Debian: apt install chromium chromium-driver)"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for word in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.set_window_size(1200, 900)
    try:
        yield browser
    finally:
        browser.quit()
