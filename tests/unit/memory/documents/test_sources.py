"""Documents come from sources: each key has one, and a source needs no files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import compare
from memory.documents.content import DocumentGone, OpenTranscript, SourceText
from memory.documents.imports import ImportedFolder
from memory.documents.roots import Root
from memory.documents.scan import Scan, ScanProblems
from memory.documents.sources import Documents, DocumentSource, Entering
from memory.store.reader import StoreReader
from schemas.documents import SESSIONS_SOURCE, DocumentKey, FileStat
from schemas.settings import AgentSettings


class Database(DocumentSource):
    """Texts by session id, with growing sequence numbers; none is a file."""

    name = SESSIONS_SOURCE

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def owns(self, key: DocumentKey) -> bool:
        return key.source == self.name and key.path.startswith("database:")

    def roots(self) -> list[Root]:
        return []

    def listed(self, root: Root, problems: ScanProblems, entering: Entering = None) -> Documents:
        yield from ()

    def walk(self, problems: ScanProblems, entering: Entering = None) -> Iterator[tuple[DocumentKey, FileStat]]:
        for session in self.texts:
            key = DocumentKey(self.name, f"database:{session}")
            yield key, FileStat(len(self.texts[session]), 1, 1)

    def stat(self, key: DocumentKey) -> FileStat | None:
        return dict(self.walk(ScanProblems())).get(key)

    def read(self, key: DocumentKey) -> SourceText:
        return SourceText(self.texts[key.path.partition(":")[2]], FileStat(1, 1, 1), "", ())

    def opened(self, key: DocumentKey, *, settled: bool = True) -> AbstractContextManager[OpenTranscript]:
        raise DocumentGone(key.path)

    def forgets(self, keys: Collection[DocumentKey], reader: StoreReader | None, scan: Scan | None) -> set[DocumentKey]:
        return set(keys)


def files_in(folder: Path) -> AgentFiles:
    for name in ("ws/MEMORY.md", "ws/memory/a.md", "vault/b.md", "sessions/x.jsonl", "old/y.jsonl"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    agent = AgentSettings(
        id="main", workspace=folder / "ws", extra_paths=(str(folder / "vault"),), sessions=(str(folder / "sessions"),)
    )
    return AgentFiles(agent, imports=folder / "imports.json", drafted=[ImportedFolder(str(folder / "old"))])


def test_each_document_belongs_to_the_source_that_found_it_alone(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    walks = {source: dict(source.walk(ScanProblems())) for source in files.sources}
    assert [len(documents) for documents in walks.values()] == [3, 1, 1]
    for source, documents in walks.items():
        for key, stat in documents.items():
            assert [other for other in files.sources if other.owns(key)] == [source]
            assert (files.stat(key), files.key_of(files.path_of(key))) == (stat, key)


def test_documents_without_files_are_scanned_read_and_forgotten(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    database = Database({"7": "said in the database"})
    files.sources = (database, *files.sources)
    key = DocumentKey(SESSIONS_SOURCE, "database:7")
    assert files.scan().documents[key] == files.stat(key) == compare(files, None).scan.documents[key]
    assert files.read(key).text == "said in the database"
    database.texts.clear()
    assert files.stat(key) is None
    assert key not in files.scan().documents
    assert files.root_is_there(key)
    assert files.source_of(key).forgets([key], None, None) == {key}
