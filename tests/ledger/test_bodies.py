"""Bodies of requests are taken at their word (interfaces.md, API)."""

import json

import pytest
from django.test import RequestFactory
from rest_framework import serializers
from rest_framework.parsers import JSONParser
from rest_framework.request import Request

from ledger.api.bodies import body_of
from ledger.api.problems import Problem


class Amount(serializers.Serializer[object]):
    amount = serializers.DecimalField(max_digits=18, decimal_places=6)


def read(amount: object) -> str:
    request = RequestFactory().post("/", json.dumps({"amount": amount}), content_type="application/json")
    return str(body_of(Request(request, parsers=[JSONParser()]), Amount)["amount"])


def test_an_amount_is_a_plain_decimal_as_the_schema_says() -> None:
    assert (read("1000.50"), read(100), read("-3")) == ("1000.500000", "100.000000", "-3.000000")


@pytest.mark.parametrize("amount", ["1e3", "1E2", " 5", "+5", "١", "0x1"])
def test_an_amount_in_another_form_is_refused(amount: str) -> None:
    with pytest.raises(Problem) as refused:
        read(amount)
    assert (refused.value.status_code, refused.value.reason) == (400, "bad_number")
