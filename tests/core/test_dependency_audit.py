"""What the audit of dependencies makes of pip-audit's report."""

from __future__ import annotations

from tests.dependency_audit import NOT_RUN, verdict

SOUND = {"name": "django", "version": "5.2.19", "vulns": []}
HOLE = {"name": "oldlib", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
OPEN_HOLE = {"name": "badlib", "version": "2.0", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]}
UNKNOWN = {"name": "ours", "skip_reason": "not found"}


def test_a_known_hole_fails_and_is_named() -> None:
    assert verdict({"dependencies": [SOUND, HOLE, OPEN_HOLE]}) == (
        ["oldlib 1.0: PYSEC-1, mended in 1.1", "badlib 2.0: PYSEC-2, mended in no version yet"],
        1,
    )


def test_nothing_found_is_quiet() -> None:
    assert verdict({"dependencies": [SOUND]}) == ([], 0)


def test_what_the_database_does_not_know_is_named() -> None:
    assert verdict({"dependencies": [SOUND, UNKNOWN]}) == (
        ["not audited, the database does not know them: ours"],
        0,
    )


def test_without_the_database_it_says_so() -> None:
    assert verdict(None) == ([NOT_RUN], 0)
    assert verdict({"dependencies": [UNKNOWN]}) == ([NOT_RUN], 0)
