"""The text that a site of a record stands in, as far as the record carries it."""

from __future__ import annotations

from collections.abc import Iterable

from tpumagic.events import CellRecord, SourceSite, SourceText
from tpumagic.sources import Source, parse


def is_of(site: SourceSite, cell: int | None, file: str | None) -> bool:
    """Whether a site stands in this cell, or, outside cells, in this file."""
    return site.cell == cell if site.cell is not None else file is not None and site.file == file


def in_cell(site: SourceSite, record: CellRecord) -> bool:
    """Whether a site stands in the record's own cell."""
    return is_of(site, record.cell, record.file) and site.line in _lines(_own(record))


def source_of(site: SourceSite, record: CellRecord) -> Source | None:
    """The cell or file of the site as syntax; None where its text is not in the record."""
    text = _text(site, record)
    return parse(text.text, text.first_line) if text is not None else None


def line_text(site: SourceSite, record: CellRecord, line: int) -> str:
    """A line of the cell or file that the site stands in; empty where it is not known."""
    text = _text(site, record)
    lines = text.text.splitlines() if text is not None else []
    position = line - text.first_line if text is not None else 0
    return lines[position] if 0 <= position < len(lines) else ""


def distinct_lines(sites: Iterable[SourceSite | None], but: SourceSite | None = None) -> tuple[SourceSite, ...]:
    """The sites without those not known, without repetition of a line and without the line of ``but``."""
    found: dict[tuple[int, int | None, str | None], SourceSite] = {}
    for site in sites:
        if site is not None and (but is None or _place(site) != _place(but)):
            found.setdefault(_place(site), site)
    return tuple(found.values())


def _place(site: SourceSite) -> tuple[int, int | None, str | None]:
    return site.line, site.cell, site.file


def _own(record: CellRecord) -> SourceText:
    return SourceText(record.source, record.cell, record.file, record.source_lines_start)


def _text(site: SourceSite, record: CellRecord) -> SourceText | None:
    texts = (_own(record), *record.other_sources)
    return next((one for one in texts if is_of(site, one.cell, one.file) and site.line in _lines(one)), None)


def _lines(text: SourceText) -> range:
    return range(text.first_line, text.first_line + text.text.count("\n") + 1)
