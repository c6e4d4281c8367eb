"""What receivers are sent, byte for byte, and what their answers mean."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core import alert_messages as core
from billing.core.alert_messages import Message

URL = "https://ledger.example.org/alerts/1/"
SHORT = Message(
    title="Shortage: bj-h100",
    severity="critical",
    is_resolved=False,
    lines=[("Severity", "critical"), ("Missing", "12 GPUs"), ("Rule", "a_b <all> & *c*")],
    url=URL,
    link_text="Open in the ledger",
)
RESOLVED = Message("Resolved: Shortage: bj-h100", "critical", True, [("Lasted", "12 min")])


def test_dingtalk() -> None:
    assert core.dingtalk(SHORT) == {
        "msgtype": "markdown",
        "markdown": {
            "title": "Shortage: bj-h100",
            "text": "### Shortage: bj-h100\n"
            "- **Severity**: critical\n"
            "- **Missing**: 12 GPUs\n"
            "- **Rule**: a\\_b &lt;all&gt; &amp; \\*c\\*\n"
            "\n"
            "[Open in the ledger](https://ledger.example.org/alerts/1/)",
        },
    }


def test_feishu() -> None:
    assert core.feishu(SHORT) == {
        "msg_type": "interactive",
        "card": {
            "config": {"wide_screen_mode": True},
            "header": {"title": {"tag": "plain_text", "content": "Shortage: bj-h100"}, "template": "red"},
            "elements": [
                {
                    "tag": "div",
                    "text": {
                        "tag": "lark_md",
                        "content": "**Severity**: critical\n**Missing**: 12 GPUs\n"
                        "**Rule**: a&#95;b &lt;all&gt; &amp; &#42;c&#42;",
                    },
                },
                {
                    "tag": "action",
                    "actions": [
                        {
                            "tag": "button",
                            "text": {"tag": "plain_text", "content": "Open in the ledger"},
                            "url": URL,
                            "type": "default",
                        }
                    ],
                },
            ],
        },
    }
    resolved = core.feishu(RESOLVED)["card"]
    assert resolved["header"]["template"] == "green"
    assert [element["tag"] for element in resolved["elements"]] == ["div"]


def test_wecom() -> None:
    assert core.wecom(SHORT) == {
        "msgtype": "markdown",
        "markdown": {
            "content": '<font color="warning">Shortage: bj-h100</font>\n'
            ">Severity: critical\n>Missing: 12 GPUs\n>Rule: a_b &lt;all&gt; &amp; *c*\n"
            "[Open in the ledger](https://ledger.example.org/alerts/1/)"
        },
    }
    assert core.wecom(RESOLVED)["markdown"]["content"].startswith('<font color="info">')


def test_slack() -> None:
    assert core.slack(SHORT) == {
        "text": "Shortage: bj-h100",
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": "*Shortage: bj-h100*"}},
            {
                "type": "section",
                "fields": [
                    {"type": "mrkdwn", "text": "*Severity*\ncritical"},
                    {"type": "mrkdwn", "text": "*Missing*\n12 GPUs"},
                    {"type": "mrkdwn", "text": "*Rule*\na_b &lt;all&gt; &amp; *c*"},
                ],
            },
            {
                "type": "section",
                "text": {"type": "mrkdwn", "text": f"<{URL}|Open in the ledger>"},
            },
        ],
    }


def test_alertmanager() -> None:
    labels = {"alertname": "ledger_shortage", "severity": "critical", "pool": "bj-h100", "tenant": ""}
    assert core.alertmanager(SHORT, labels, "2026-10-01T00:00:00+00:00", None) == [
        {
            "labels": {"alertname": "ledger_shortage", "severity": "critical", "pool": "bj-h100"},
            "annotations": {
                "summary": "Shortage: bj-h100",
                "description": "Severity: critical\nMissing: 12 GPUs\nRule: a_b <all> & *c*\n\n" + URL,
            },
            "startsAt": "2026-10-01T00:00:00+00:00",
            "generatorURL": URL,
        }
    ]
    [resolved] = core.alertmanager(RESOLVED, labels, "2026-10-01T00:00:00+00:00", "2026-10-01T00:12:00+00:00")
    assert (resolved["endsAt"], "generatorURL" in resolved) == ("2026-10-01T00:12:00+00:00", False)


def test_dingtalk_signs_the_address() -> None:
    query = parse_qs(core.dingtalk_query("SEC123", 1_790_000_000_123), strict_parsing=True)
    expected = hmac.new(b"SEC123", b"1790000000123\nSEC123", hashlib.sha256).digest()
    assert query == {"timestamp": ["1790000000123"], "sign": [base64.b64encode(expected).decode()]}


def test_feishu_signs_nothing_with_time_and_secret_as_the_key() -> None:
    signed = core.feishu_signed("s3cret", 1_790_000_000, {"msg_type": "text"})
    expected = hmac.new(b"1790000000\ns3cret", b"", hashlib.sha256).digest()
    assert signed == {
        "timestamp": "1790000000",
        "sign": base64.b64encode(expected).decode(),
        "msg_type": "text",
    }


def test_the_ledgers_own_signature() -> None:
    expected = hmac.new(b"key", b"1790000000.{}", hashlib.sha256).hexdigest()
    assert core.signature("key", 1_790_000_000, b"{}") == f"v1={expected}"


@pytest.mark.parametrize(
    ("channel", "status", "body", "problem"),
    [
        ("webhook", 204, b"", ""),
        ("webhook", 302, b"", "HTTP 302"),
        ("slack", 200, b"ok", ""),
        ("slack", 403, b"invalid_token", "HTTP 403"),
        ("dingtalk", 200, b'{"errcode":0,"errmsg":"ok"}', ""),
        ("dingtalk", 200, b'{"errcode":310000,"errmsg":"sign not match"}', "code 310000: sign not match"),
        (
            "wecom",
            200,
            b'{"errcode":93000,"errmsg":"invalid webhook url"}',
            "code 93000: invalid webhook url",
        ),
        ("feishu", 200, b'{"StatusCode":0,"StatusMessage":"success"}', ""),
        ("feishu", 200, b'{"code":0,"msg":"success","data":{}}', ""),
        ("feishu", 200, b'{"code":19021,"msg":"sign match fail"}', "code 19021: sign match fail"),
        ("feishu", 200, b"<html>", "an answer that is not JSON"),
        ("dingtalk", 200, b"[]", "an answer that is no object"),
    ],
)
def test_answers(channel: str, status: int, body: bytes, problem: str) -> None:
    assert str(core.problem_of(channel, status, body) or "") == problem


def test_tries_again_ever_later_and_gives_up() -> None:
    delays = [core.retry_after_s(attempts) for attempts in range(1, 13)]
    assert delays == [30, 60, 120, 240, 480, 960, 1920, 3840, 7680, 15360, 21600, None]
    assert core.retry_after_s(1, asked_s=600) == 600
    assert core.retry_after_s(1, asked_s=999_999) == 6 * 3600


NASTY = st.text(st.sampled_from('ab中🙂 \n<>&*_`[]()|~@#\\"'), max_size=60)


@given(NASTY, st.lists(st.tuples(NASTY, NASTY), max_size=120))
def test_whatever_names_say_is_text(title: str, lines: list[tuple[str, str]]) -> None:
    """No line break of a name adds a line, no tag or link comes to life, and limits hold."""
    message = Message(title, "warning", False, lines, URL, "Open")
    wecom = core.wecom(message)["markdown"]["content"]
    assert len(wecom.encode()) <= core.WECOM_MAX_BYTES
    assert wecom.count("<") == 2
    assert core.dingtalk(message)["markdown"]["text"].count("\n") == len(lines) + 2
    blocks: list[dict[str, Any]] = core.slack(message)["blocks"]
    assert all(len(block.get("fields", [])) <= core.SLACK_MAX_FIELDS for block in blocks)
    assert json.dumps(blocks).count("<") == 1
    assert "<" not in core.feishu(message)["card"]["elements"][0]["text"]["content"]
