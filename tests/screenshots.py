"""Takes the pictures of docs/tour.md: `make screenshots`.

A demo month of fixed arguments in a throwaway database, behind a server of its own; so the figures in the pictures are
the same every time. What is shown, and by whom, is listed in tests/tour.py.
"""

# ruff: noqa: E402 (Django is set up before anything that needs it is imported)

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")
# Playwright's synchronous API runs an event loop in this thread, where Django would refuse the ORM.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"

import django

django.setup()

from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import Client
from playwright.sync_api import Browser, sync_playwright
from pytest_django.live_server_helper import LiveServer

from ledger.models import User
from tests.fixtures.browser import CHROMIUM_ARGUMENTS, find_chromium
from tests.tour import HEIGHT, PICTURES, SHOTS, WIDTH, Shot, look_at

MONTH = "2026-10"
LOADED = {"seed": 1, "requests": 4_000}


def take(browser: Browser, url: str, shot: Shot) -> None:
    client = Client()
    client.force_login(User.objects.get(username=shot.who))
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=shot.scheme, reduced_motion="reduce"
    )
    cookies = {
        settings.SESSION_COOKIE_NAME: str(client.session.session_key),
        settings.LANGUAGE_COOKIE_NAME: shot.language,
    }
    context.add_cookies([{"name": name, "value": value, "url": url} for name, value in cookies.items()])
    page = context.new_page()
    look_at(page, url, shot, MONTH)
    page.screenshot(path=shot.file, animations="disabled", caret="hide")
    context.close()
    print(f"{shot.file.name}: {shot.file.stat().st_size // 1024} KiB", flush=True)


def main() -> int:
    chromium = find_chromium()
    if chromium is None:
        print("There is no Chromium to take pictures with.", file=sys.stderr)
        return 2
    PICTURES.mkdir(parents=True, exist_ok=True)
    wanted = set(sys.argv[1:]) or {shot.name for shot in SHOTS}
    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    server = None
    try:
        call_command("load_demo_month", MONTH, **LOADED, stdout=io.StringIO(), stderr=io.StringIO())
        server = LiveServer("localhost")
        settings.ALLOWED_HOSTS = ["localhost", "testserver"]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS)
            for shot in SHOTS:
                if shot.name in wanted:
                    take(browser, server.url, shot)
            browser.close()
        return 0
    finally:
        if server is not None:
            server.stop()
            # A request that the browser broke off may still be at work.
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        connection.creation.destroy_test_db(name, verbosity=0)


if __name__ == "__main__":
    sys.exit(main())
