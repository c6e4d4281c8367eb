"""WSGI entry point for gunicorn: `gunicorn ledger.config.wsgi`."""

import os

from django.core.wsgi import get_wsgi_application

# A web server is production unless told otherwise: without a secret key it must not start.
os.environ.setdefault("LEDGER_DEBUG", "0")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")

application = get_wsgi_application()
