"""Checks this archive with Python 3.9 or newer alone: python3 check.py [hash that the chain should end with]"""

import csv
import gzip
import hashlib
import io
import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def read(name):
    """Bytes of a file; a missing one is empty here and named by `files`."""
    return (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""


def load(name):
    return json.loads(read(name) or "[]")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def usage_rows(tenant):
    return list(csv.DictReader(io.StringIO(read(f"statements/{tenant}/usage.csv").decode(), newline="")))


def files():
    listed = dict(reversed(line.split("  ", 1)) for line in read("SHA256SUMS").decode().splitlines())
    present = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()}
    for name in sorted((present - {"SHA256SUMS"}) ^ set(listed)):
        yield f"{name}: {'not listed' if name in present else 'missing'}"
    for name in sorted(present & set(listed)):
        if sha256(read(name)) != listed[name]:
            yield f"{name}: not the file that was exported"


def chain(links, statements, head):
    last, of_tenant = "0" * 64, {}  # type: ignore[var-annotated]
    for link in links:
        before = [last, of_tenant.get(link["tenant"], "0" * 64)]
        if [link["previous_of_ledger"], link["previous_of_tenant"]] != before:
            yield f"{link['number']}: does not follow the statement before it"
        last = of_tenant[link["tenant"]] = link["sha256"]
    if last != (head or last):
        yield f"the chain ends with {last}, not with {head}"
    named = {link["number"]: link["sha256"] for link in links if link["month"] == load("month.json")["month"]}
    for number, hashed in sorted(named.items() ^ {(one["number"], one["sha256"]) for one in statements}):
        yield f"{number}: {hashed} stands in the chain or in the statements, not in both"


def statement(one):
    number, content, held = one["number"], one["content"], Counter()  # type: ignore[var-annotated]
    sealed = {name: one[name] for name in ("content", "previous_of_tenant", "previous_of_ledger")}
    canonical = json.dumps(sealed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)  # RFC 8785
    if sha256(canonical.encode()) != one["sha256"]:
        yield f"{number}: content does not match its hash"
    for unit in ("micro", "minor"):
        if sum(int(line[f"amount_{unit}"] or 0) for line in content["lines"]) != int(
            content[f"total_{unit}"]
        ):
            yield f"{number}: lines do not add up to the total in {unit} units"
    for line in content["lines"]:
        if line["unit"] == "gpu_us" and line["kind"] in ("usage", "shared"):
            held[line["pool"], line["service"], line["category"]] += int(line["quantity"])
    for row in usage_rows(one["tenant"]):
        held[row["pool"], row["service"], row["category"]] -= int(row["gpu_us"])
    for key, difference in held.items():
        if difference:
            yield f"{number}: {' '.join(filter(None, key))}: lines and slots differ by {difference} gpu_us"
    for name, said in content["annexes"].items():
        if sha256(read(f"statements/{one['tenant']}/{name}.csv")) != said["sha256"]:
            yield f"{number}: {name}.csv is not the file that was sealed"


def sample(rows, batches):
    for batch in batches:
        if batch["kept"] and sha256(read(f"raw/{batch['id']}")) != batch["sha256"]:
            yield f"batch {batch['id']}: not the bytes that were received"
    for row in rows:
        if row["usage"] not in usage_rows(row["usage"]["tenant"]):
            yield f"sample: {row['usage']['hour']} of {row['usage']['tenant']} is not in its usage.csv"
        for event in row["events"]:
            raw = read(f"raw/{event['batch']}")
            raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
            if event["said"] and json.dumps(event["id"]).encode() not in raw:
                yield f"sample: event {event['id']} is not in batch {event['batch']}"


if __name__ == "__main__":
    bills = [json.loads(path.read_bytes()) for path in sorted(ROOT.glob("statements/*/statement.json"))]
    problems = [*files(), *chain(load("chain.json"), bills, "".join(sys.argv[1:2]))]
    problems += [problem for bill in bills for problem in statement(bill)]
    problems += sample(load("sample.json"), load("batches.json"))
    sys.exit("\n".join(problems) or print(f"all of {len(bills)} statements hold"))
