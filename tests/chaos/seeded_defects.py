"""Defects that the tests must catch: each breaks one promise by one small change of the product.

`test_seeded_defects.py` makes the change in a copy of the checkout, runs the tests that hold the promise there, and
fails if they still pass.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Defect:
    """Change of one place in a file: `right` becomes `wrong`. One of `caught_by` must fail then.

    `right` stands exactly once in the file. `caught_by` are arguments of pytest.
    """

    name: str
    file: str
    right: str
    wrong: str
    caught_by: tuple[str, ...]


DEFECTS = (
    Defect(
        name="a scope that allows every session",
        file="memory/search/scope.py",
        right='return rule.action == "allow"',
        wrong="return True",
        caught_by=("tests/integration/test_scope.py",),
    ),
    Defect(
        name="an agent's token that opens another agent's memory",
        file="memory/http/authorization.py",
        right="if requested is not None and requested != agent:",
        wrong="if False:",
        caught_by=("tests/integration/test_query_service.py", "-k", "token"),
    ),
    Defect(
        name="a link that is followed",
        file="memory/documents/content.py",
        right="_FILE = os.O_RDONLY | os.O_NOFOLLOW",
        wrong="_FILE = os.O_RDONLY",
        caught_by=("tests/unit/memory/documents/test_path_safety.py",),
    ),
    Defect(
        name="redaction that leaves tokens as they are",
        file="memory/redaction/redactor.py",
        right="        *find_tokens(without_masks),\n",
        wrong="",
        caught_by=("tests/integration/test_secrets.py",),
    ),
    Defect(
        name="redaction that is dropped from notes",
        file="memory/redaction/redactor.py",
        right="return partial(redact, find_patterns=UserPatterns(patterns, budget)) if patterns else redact",
        wrong="return str",
        caught_by=("tests/integration/test_secrets.py",),
    ),
    Defect(
        name="a deleted chunk that leaves its keywords behind",
        file="memory/store/sqlite/transaction.py",
        right="        self._connection.executemany(DELETE_FTS, ids)\n",
        wrong="",
        caught_by=("tests/unit/memory/store", "-k", "conformance"),
    ),
    Defect(
        name="an older reading that overwrites a newer one",
        file="memory/store/document_transaction.py",
        right="        return (row.file.revision if row is not None else -self._deletions) != change.expected\n",
        wrong="        return False\n",
        caught_by=("tests/unit/memory/store", "-k", "conformance"),
    ),
    Defect(
        name="a mark that is lost when its document changes during the job",
        file="workers/queue/pending.lua",
        right="if again == '' and not args.back then",
        wrong="if not args.back then",
        caught_by=("tests/integration/test_marks.py",),
    ),
    Defect(
        name="a claim that is granted to two processes",
        file="workers/claims.py",
        right="    denied[#denied + 1] = i - 1\n",
        wrong="    redis.call('SET', KEYS[i], ARGV[1], 'EX', ARGV[2])\n",
        caught_by=("tests/integration/test_paying_once.py",),
    ),
    Defect(
        name="a vector that is paid for and not kept",
        file="memory/embedding/batcher.py",
        right="                    self._cache.keep(self._provider.identity, vectors)  # before any use\n",
        wrong="                    pass\n",
        caught_by=("tests/unit/memory/embedding/test_batcher.py",),
    ),
    Defect(
        name="unchanged chunks that are embedded and written again",
        file="memory/index/changes.py",
        right="            if not (old_chunks := self._rows[chunk.text_hash]):\n",
        wrong="            if (old_chunks := self._rows[chunk.text_hash]) is not None:\n",
        caught_by=("tests/unit/memory/index/test_indexer.py",),
    ),
    Defect(
        name="a commit that is torn in two",
        file="memory/store/document_transaction.py",
        right="        self._write_chunks()\n        for key, refusal",
        wrong=(
            "        self._write_chunks()\n"
            "        self._connection.execute('COMMIT')\n"
            "        self._connection.execute('BEGIN IMMEDIATE')\n"
            "        for key, refusal"
        ),
        caught_by=("tests/unit/memory/store/test_sqlite_crashes.py",),
    ),
    Defect(
        name="a document that may crash workers for ever",
        file="workers/queue/quarantine.py",
        right="Verdict.TRY if int(crashes) < MOST_CRASHES else Verdict.GIVE_UP",
        wrong="Verdict.TRY",
        caught_by=("tests/integration/test_marks.py",),
    ),
    Defect(
        name="a search that does not ask what was saved just before it",
        file="memory/search/freshness.py",
        right="if self._inbox is None or not self._agent.sync.on_search or time.monotonic() >= deadline:",
        wrong="if True:",
        caught_by=("tests/acceptance/test_fresh_searches.py",),
    ),
)
