"""What is sent about an alert, in the form that each receiver accepts: plain dictionaries, ready to be JSON.

Forms as documented by DingTalk (custom robot), Feishu and Lark (custom bot), WeCom (group robot), Slack (incoming
webhook, Block Kit) and Prometheus (Alertmanager API v2). Names in a message come from clusters and people: each form
escapes what it would otherwise run as markup.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

from billing.core.sentences import Sentence, sentence

Json = dict[str, Any]

WECOM_MAX_BYTES = 4096
SLACK_MAX_FIELDS = 10
_FEISHU_COLOURS = {"info": "blue", "warning": "orange", "critical": "red"}
_WECOM_COLOURS = {"info": "comment", "warning": "warning", "critical": "warning"}
_MARKUP = re.compile(r"([\\`*_\[\]|~])")


@dataclass(frozen=True, slots=True)
class Message:
    """In the reader's language. lines: (label, value). url: absolute, or '' where the ledger's address is unknown."""

    title: str
    severity: str
    is_resolved: bool
    lines: Sequence[tuple[str, str]]
    url: str = ""
    link_text: str = ""


def plain_text(message: Message) -> str:
    """The body of an e-mail."""
    lines = [f"{label}: {value}" for label, value in message.lines]
    return "\n".join([*lines, *(["", message.url] if message.url else [])]) + "\n"


def dingtalk(message: Message) -> Json:
    parts = [f"### {_markdown(message.title)}"]
    parts += [f"- **{_markdown(label)}**: {_markdown(value)}" for label, value in message.lines]
    if message.url:
        parts += ["", f"[{_markdown(message.link_text)}]({message.url})"]
    return {"msgtype": "markdown", "markdown": {"title": message.title, "text": "\n".join(parts)}}


def wecom(message: Message) -> Json:
    """At most 4096 bytes: lines that do not fit are left away, never half a character."""
    colour = "info" if message.is_resolved else _WECOM_COLOURS[message.severity]
    head = f'<font color="{colour}">{_html(message.title)}</font>'
    tail = f"\n[{_html(message.link_text)}]({message.url})" if message.url else ""
    content = _at_most(head, WECOM_MAX_BYTES - len(tail.encode()))
    for label, value in message.lines:
        line = f"\n>{_html(label)}: {_html(value)}"
        if len((content + line + tail).encode()) <= WECOM_MAX_BYTES:
            content += line
    return {"msgtype": "markdown", "markdown": {"content": content + tail}}


def feishu(message: Message) -> Json:
    """An interactive card."""
    text = "\n".join(f"**{_lark(label)}**: {_lark(value)}" for label, value in message.lines)
    elements: list[Json] = [{"tag": "div", "text": {"tag": "lark_md", "content": text}}]
    if message.url:
        button = {
            "tag": "button",
            "text": {"tag": "plain_text", "content": message.link_text},
            "url": message.url,
            "type": "default",
        }
        elements.append({"tag": "action", "actions": [button]})
    colour = "green" if message.is_resolved else _FEISHU_COLOURS[message.severity]
    header = {"title": {"tag": "plain_text", "content": message.title}, "template": colour}
    card = {"config": {"wide_screen_mode": True}, "header": header, "elements": elements}
    return {"msg_type": "interactive", "card": card}


def slack(message: Message) -> Json:
    """`text` is what notifications show; the blocks are the message. A section takes at most 10 fields."""
    blocks: list[Json] = [
        {"type": "section", "text": {"type": "mrkdwn", "text": f"*{_slack(message.title)}*"}},
    ]
    fields = [
        {"type": "mrkdwn", "text": f"*{_slack(label)}*\n{_slack(value)}"} for label, value in message.lines
    ]
    for first in range(0, len(fields), SLACK_MAX_FIELDS):
        blocks.append({"type": "section", "fields": fields[first : first + SLACK_MAX_FIELDS]})
    if message.url:
        link = f"<{message.url}|{_slack(message.link_text)}>"
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": link}})
    return {"text": _slack(message.title), "blocks": blocks}


def alertmanager(
    message: Message, labels: Mapping[str, str], starts_at: str, ends_at: str | None
) -> list[Json]:
    """`POST /api/v2/alerts`: an array. Labels identify the alert, annotations describe it; empty labels are none."""
    alert: Json = {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {"summary": message.title, "description": plain_text(message).strip()},
        "startsAt": starts_at,
    }
    if ends_at is not None:
        alert["endsAt"] = ends_at
    if message.url:
        alert["generatorURL"] = message.url
    return [alert]


# Signatures


def signature(secret: str, timestamp_s: int, body: bytes) -> str:
    """Of the ledger's own webhook: 'v1=' and the hex HMAC-SHA256 of '<timestamp>.<body>'."""
    signed = str(timestamp_s).encode() + b"." + body
    return "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def dingtalk_query(secret: str, timestamp_ms: int) -> str:
    """What DingTalk wants behind the address of a robot with a signing secret."""
    signed = f"{timestamp_ms}\n{secret}".encode()
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
    return f"timestamp={timestamp_ms}&sign={quote_plus(base64.b64encode(digest))}"


def feishu_signed(secret: str, timestamp_s: int, payload: Json) -> Json:
    """Feishu signs nothing with the key '<timestamp>\\n<secret>', and wants both in the body."""
    digest = hmac.new(f"{timestamp_s}\n{secret}".encode(), b"", hashlib.sha256).digest()
    return {"timestamp": str(timestamp_s), "sign": base64.b64encode(digest).decode(), **payload}


# Answers


def problem_of(channel: str, status: int, body: bytes) -> Sentence | None:
    """Why a receiver did not take it; None if it did. Chat services say no with a 200 and a code in the body."""
    if not 200 <= status < 300:
        return sentence("answered_http", status=status)
    if channel not in ("dingtalk", "wecom", "feishu"):
        return None
    try:
        answer = json.loads(body)
    except ValueError:
        return sentence("answered_no_json")
    if not isinstance(answer, dict):
        return sentence("answered_no_object")
    code = next((answer[name] for name in ("errcode", "code", "StatusCode") if name in answer), None)
    if code == 0:
        return None
    said = str(answer.get("errmsg") or answer.get("msg") or answer.get("StatusMessage") or "")
    return sentence("answered_code", number=str(code)[:40], said=said[:200])


# When to try again

FIRST_RETRY_S = 30
LONGEST_RETRY_S = 6 * 3600
MAX_ATTEMPTS = 12


def retry_after_s(attempts: int, asked_s: int | None = None) -> int | None:
    """How long to wait after so many attempts, doubling from 30 s to 6 h; a receiver may ask for more, at most 6 h.

    None: it has been tried often enough (12 times, over about a day).
    """
    if attempts >= MAX_ATTEMPTS:
        return None
    delay_s = min(FIRST_RETRY_S << max(attempts - 1, 0), LONGEST_RETRY_S)
    return min(max(delay_s, asked_s or 0), LONGEST_RETRY_S)


# Escaping


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _markdown(text: str) -> str:
    """For DingTalk: a backslash before what would be markup."""
    return _MARKUP.sub(r"\\\1", _html(text))


def _lark(text: str) -> str:
    """For Feishu, which knows no backslash but character references."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[1])};", _html(text))


def _html(text: str) -> str:
    return _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _slack(text: str) -> str:
    """Slack asks for exactly these three; without '<' nothing becomes a link or a mention."""
    return _html(text)


def _at_most(text: str, size: int) -> str:
    return text.encode()[:size].decode("utf-8", "ignore")
