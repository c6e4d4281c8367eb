"""How answers name what is kept as a code: beside the English text, under `..._code` or `..._codes`."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers


@extend_schema_serializer(component_name="Sentence")
class SentenceRow(serializers.Serializer[Any]):
    """A code and the values in its words, to be told in any language."""

    code = serializers.CharField()
    values = serializers.DictField(help_text="texts, numbers, or sentences again")
