"""Catalogues of translated texts without gettext's tools, which a user's machine may not have.

Finds every text in the templates and the code, keeps the .po file complete, and compiles it to the .mo file that is
committed beside it. Only what the pages use is understood: contexts, plurals, no fuzzy entries.
"""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from django.utils.translation.template import templatize

SOURCES = ("templates", "ledger", "billing", "ingest")
CONTEXT_END = "\x04"
PLURAL_END = "\x00"
# The names under which code calls gettext; `_` is whichever of them a module imported.
_SINGULAR = {"_", "gettext", "gettext_lazy", "gettext_noop"}
_PLURAL = {"ngettext", "ngettext_lazy"}
_CONTEXT = {"pgettext", "pgettext_lazy"}
_CALL_IN_TEMPLATE = re.compile(r"\b(?:gettext|ngettext|pgettext|npgettext|_)\((?:u?'|u?\")")
_MO_MAGIC = 0x950412DE


@dataclass(frozen=True)
class Text:
    """A text to translate. `key` is unique in a catalogue."""

    singular: str
    plural: str = ""
    context: str = ""

    @property
    def key(self) -> str:
        return (self.context + CONTEXT_END if self.context else "") + self.singular


@dataclass(frozen=True)
class Entry:
    """A text and what it is in the catalogue's language; one form per plural form."""

    text: Text
    forms: tuple[str, ...] = ("",)

    @property
    def is_translated(self) -> bool:
        return all(self.forms)


@dataclass
class Catalogue:
    """Entries by key; `header` is the translation of the empty text."""

    header: str
    entries: dict[str, Entry] = field(default_factory=dict)

    def missing(self, wanted: Iterable[Text]) -> list[Text]:
        """Texts that are not translated, or whose placeholders differ from the translation's."""
        return [text for text in wanted if not _is_complete(self.entries.get(text.key), text)]


def _is_complete(entry: Entry | None, text: Text) -> bool:
    if entry is None or not entry.is_translated:
        return False
    wanted = _placeholders(text.plural or text.singular)
    return all(_placeholders(form) == wanted for form in entry.forms)


def _placeholders(text: str) -> set[str]:
    return set(re.findall(r"%\(\w+\)s", text))


# Finding texts


def texts_in(base: Path) -> list[Text]:
    """Every text of the templates and of the code, in a stable order, each once."""
    found: dict[str, Text] = {}
    for root in SOURCES:
        for path in sorted((base / root).rglob("*")):
            for text in _texts_of(path):
                known = found.get(text.key)
                if known is None or text.plural:
                    found[text.key] = text
    return list(found.values())


def _texts_of(path: Path) -> Iterator[Text]:
    if path.suffix == ".html":
        yield from _texts_of_template(path.read_text(encoding="utf-8"))
    elif path.suffix == ".py":
        yield from _texts_of_code(path.read_text(encoding="utf-8"))


def _texts_of_template(source: str) -> Iterator[Text]:
    pseudo_code = templatize(source)
    for call in _CALL_IN_TEMPLATE.finditer(pseudo_code):
        yield from _texts_of_code(_balanced(pseudo_code, call.start()))


def _balanced(code: str, start: int) -> str:
    """The call that begins at `start`: the shortest piece up to a closing bracket that is Python."""
    end = code.index(")", start) + 1
    while True:
        try:
            ast.parse(code[start:end], mode="eval")
            return code[start:end]
        except SyntaxError:
            end = code.index(")", end) + 1


def _texts_of_code(source: str) -> Iterator[Text]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            strings = [
                one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            if name in _SINGULAR and strings:
                yield Text(strings[0])
            elif name in _PLURAL and len(strings) > 1:
                yield Text(strings[0], plural=strings[1])
            elif name in _CONTEXT and len(strings) > 1:
                yield Text(strings[1], context=strings[0])


# The .po file


def read_catalogue(path: Path) -> Catalogue:
    """Parse a .po file as `write_catalogue` writes it."""
    catalogue = Catalogue("")
    if not path.exists():
        return catalogue
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        values = _fields(block)
        if "msgid" not in values:
            continue
        forms = tuple(values[name] for name in values if name.startswith("msgstr"))
        text = Text(values["msgid"], values.get("msgid_plural", ""), values.get("msgctxt", ""))
        if text.singular:
            catalogue.entries[text.key] = Entry(text, forms)
        else:
            catalogue.header = forms[0]
    return catalogue


def _fields(block: str) -> dict[str, str]:
    values: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if not line.startswith('"'):
            name, line = line.split(" ", 1)
        values[name] = values.get(name, "") + ast.literal_eval(line.strip())
    return values


def updated(catalogue: Catalogue, wanted: Iterable[Text]) -> Catalogue:
    """Exactly the wanted texts, with what is translated of them."""
    entries = {}
    for text in wanted:
        known = catalogue.entries.get(text.key)
        entries[text.key] = replace(known, text=text) if known else Entry(text)
    return Catalogue(catalogue.header, entries)


def write_catalogue(path: Path, catalogue: Catalogue) -> None:
    header = "".join(f"{_quoted(line)}\n" for line in catalogue.header.splitlines(keepends=True))
    blocks = [f'msgid ""\nmsgstr ""\n{header}']
    blocks += [_block(entry) for entry in catalogue.entries.values()]
    path.write_text("\n".join(blocks), encoding="utf-8")


def _block(entry: Entry) -> str:
    text = entry.text
    lines = [f"msgctxt {_quoted(text.context)}"] if text.context else []
    lines.append(f"msgid {_quoted(text.singular)}")
    if text.plural:
        lines.append(f"msgid_plural {_quoted(text.plural)}")
        lines += [f"msgstr[{number}] {_quoted(form)}" for number, form in enumerate(entry.forms)]
    else:
        lines.append(f"msgstr {_quoted(entry.forms[0])}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


# The .mo file


def compiled(catalogue: Catalogue) -> bytes:
    """The catalogue in gettext's binary form: two sorted tables of (length, offset), then the texts."""
    pairs = {"": catalogue.header}
    for entry in catalogue.entries.values():
        if entry.is_translated:
            key = entry.text.key + (PLURAL_END + entry.text.plural if entry.text.plural else "")
            pairs[key] = PLURAL_END.join(entry.forms)
    rows = sorted((key.encode(), value.encode()) for key, value in pairs.items())
    header_size, table_size = 7 * 4, len(rows) * 8
    offset = header_size + 2 * table_size
    tables: list[bytes] = []
    texts: list[bytes] = []
    for column in (0, 1):
        for row in rows:
            tables.append(struct.pack("<II", len(row[column]), offset))
            texts.append(row[column] + b"\x00")
            offset += len(row[column]) + 1
    start = struct.pack(
        "<7I", _MO_MAGIC, 0, len(rows), header_size, header_size + table_size, 0, header_size + 2 * table_size
    )
    return start + b"".join(tables) + b"".join(texts)
