"""Texts of files: plain text, HTML, PDF and docx, or a folder of these.

The packages are of the extra `files`, and imported when a file needs them.
"""

import codecs
import io
import re
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from atommem.errors import DataError

_HTML_NAMES = (".html", ".htm", ".xhtml")
_INVISIBLE = ("script", "style", "template", "noscript", "head", "datalist")
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_XML = re.compile(rb"""\s*<\?xml\b[^>]*?\sencoding\s*=\s*["']([^"'>]+)""", re.I)
_META = re.compile(rb"""<meta[\s/]((?:[^>"']|"[^"]*"|'[^']*')*)""", re.I)
_ATTRIBUTE = re.compile(rb"""([^\s"'/=]+)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")
_CONTENT = re.compile(rb"""charset\s*=\s*["']?([^\s"';]+)""", re.I)
_Reader = Callable[[bytes], tuple[str, list[str]]]
_MEDIA = ("img", "svg", "canvas", "video", "audio", "iframe", "embed", "object")


def read_path(path: Path) -> str:
    """Return the text of a file, or of all files of a folder; warn about what is left out.

    A folder's texts have the headings of documents in long-document tasks. DataError without text.
    """
    if not path.is_dir():
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
        return text_of_bytes(raw, str(path))
    texts: list[str] = []
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        name = file.relative_to(path)
        if any(part.startswith(".") for part in name.parts):
            continue
        try:
            texts.append(f"Document {len(texts) + 1}: {name}\n{read_path(file).strip()}")
        except DataError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
    if not texts:
        raise DataError(f"{path}: no file of this folder can be read.")
    return "\n\n".join(texts)


def text_of_bytes(raw: bytes, name: str) -> str:
    """Return the text of a file's content, as `extract`; warn about what is left out."""
    text, left_out = extract(raw, name)
    if left_out:
        warnings.warn(f"{name}: left out: {'; '.join(left_out)}", stacklevel=2)
    return text


def extract(raw: bytes, name: str) -> tuple[str, list[str]]:
    """Return the text of a file's content, and what it leaves out; DataError without text."""
    kind, read = _reader(raw, name)
    try:
        text, left_out = read(raw)
    except (DataError, ModuleNotFoundError, MemoryError):
        raise
    except Exception as error:  # parsers raise anything on malformed input
        problem = f"{type(error).__name__}: {error}"
        raise DataError(f"{name}: not a {kind} file that can be read ({problem}).") from error
    if not text.strip():
        reason = f" ({'; '.join(left_out)})" if left_out else ""
        raise DataError(f"{name} is empty: there is nothing to read{reason}.")
    return text, left_out


def _reader(raw: bytes, name: str) -> tuple[str, _Reader]:
    """Return a format and its reader: by the first bytes, of HTML also by the name."""
    start = raw[:1024].removeprefix(codecs.BOM_UTF8).lstrip().lower()
    if start.startswith(b"%pdf-") or (b"%pdf-" in start and name.lower().endswith(".pdf")):
        return "PDF", _read_pdf
    if start.startswith(b"pk\x03\x04") and b"word/document.xml" in raw:
        return "docx", _read_docx
    is_xhtml = start.startswith((b"<?xml", b"<!--")) and b"<html" in start
    is_html = is_xhtml or start.startswith((b"<!doctype html", b"<html", b"<head", b"<body"))
    if is_html or name.lower().endswith(_HTML_NAMES):
        return "HTML", _read_html
    return "text", lambda raw: (_decode_text(raw, name), [])


def decode_declared(raw: bytes, charset: str = "", is_html: bool = True) -> tuple[str, str] | None:
    """Return text and encoding as browsers find it; None if nothing declares it.

    A byte order mark wins over `charset`, of the header, and that over the page's own declaration.
    """
    import webencodings

    # A declaration in ASCII is not UTF-16, so the standard takes it for UTF-8.
    label = re.sub("(?i)^utf-?16.*", "utf-8", _declaration(raw, is_html))
    names = [name for name in (charset, label) if name]
    for name in tuple(names):
        with suppress(LookupError):
            names.insert(names.index(name) + 1, codecs.lookup(name).name)  # of Python: latin-1
    known = next(filter(webencodings.lookup, names), None)
    if known is None and not raw.startswith(_MARKS):
        return None
    encoding = webencodings.lookup(known or "utf-8")
    if encoding.name == "gbk":
        encoding = webencodings.lookup("gb18030")
    with suppress(LookupError):
        if encoding.name == "replacement":  # browsers, which run scripts, refuse hz
            encoding = webencodings.Encoding(known, codecs.lookup(str(known)))
    text, found = webencodings.decode(raw, encoding)
    return str(text), str(found.name)


def _declaration(raw: bytes, is_html: bool) -> str:
    """Return the first label of a known encoding that a page or XML declares for itself, or ""."""
    import webencodings

    labels = []
    for tag in _META.finditer(_COMMENT.sub(b"", raw[:65536])) if is_html else ():
        pairs = _ATTRIBUTE.findall(tag[1])
        values = {name.lower(): value.strip(b"\"' ") for name, value in reversed(pairs)}
        if b"charset" in values:
            labels.append(values[b"charset"])
        elif values.get(b"http-equiv", b"").lower() == b"content-type":
            labels += _CONTENT.findall(values.get(b"content", b""))
    if found := _XML.match(raw.removeprefix(codecs.BOM_UTF8)):
        labels.append(found[1])
    texts = (label.strip().decode("latin-1").lower() for label in labels)
    label = next(filter(webencodings.lookup, texts), "")
    return "windows-1252" if label == "x-user-defined" else label


def _decode_text(raw: bytes, name: str) -> str:
    """Return text in UTF-8, or in the encoding of its byte order mark."""
    is_utf16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = raw.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        if not re.search(rb"[\0-\x08\x0e-\x1f]", raw):
            convert = "Convert it: iconv -f ENCODING -t utf-8 (of Western texts, windows-1252)."
            raise DataError(f"{name}: text in another encoding than UTF-8. {convert}") from error
        text = "\0"
    if "\0" in text or text.startswith(("{\\rtf", "MIME-Version:", "From: <Saved by")):
        raise DataError(
            f"{name}: not utf-8 text, HTML, PDF or docx. Save it as one of these (PDF: from print)."
        )
    return text


def _read_html(source: bytes | str) -> tuple[str, list[str]]:
    """Return a page's visible text as Markdown without links' addresses, decoded as browsers do."""
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    left_out = []
    text: Any = source
    if isinstance(source, bytes):
        try:
            text, encoding = decode_declared(source) or (source.decode(), "utf-8")
        except UnicodeDecodeError:
            text, encoding = source.decode("cp1252", "replace"), "windows-1252"
        if lost := text.count("\ufffd"):
            left_out.append(f"characters that are not {encoding}: {lost}")
    soup = BeautifulSoup(text, "lxml")
    title = soup.title.get_text(" ", strip=True) if soup.title is not None else ""
    for tag in soup.find_all([*_INVISIBLE, _is_hidden]):
        tag.decompose()
    for name in _MEDIA:
        found = soup.find_all(name)
        for tag in found:
            tag.replace_with(str(tag.get("alt") or "") if name == "img" else "")
        if found:
            left_out.append(f"{'pictures' if name == 'img' else name}: {len(found)}")
    for tag in soup.find_all("sup"):
        before = str(tag.previous_sibling or "")[-1:]
        if before.isdigit() and re.fullmatch(r"[-\u2212+]?\d+", tag.get_text(strip=True)):
            tag.insert_before("^")  # 10<sup>6</sup> is not 106
    escape: Any = dict.fromkeys(("escape_asterisks", "escape_underscores", "escape_misc"), False)
    shape: Any = {"heading_style": "ATX", "strip": ["a"], "table_infer_header": True}
    text = MarkdownConverter(**shape, **escape).convert_soup(soup).strip()
    return (f"{title}\n\n{text}" if title and title not in text[:500] else text), left_out


def _is_hidden(tag: Any) -> bool:
    hides = re.search(r"display:\s*none|visibility:\s*hidden", str(tag.get("style", "")).lower())
    return tag.has_attr("hidden") or hides is not None


def _read_docx(raw: bytes) -> tuple[str, list[str]]:
    import mammoth

    without_data = mammoth.images.img_element(lambda image: {})
    converted = mammoth.convert_to_html(io.BytesIO(raw), convert_image=without_data)
    text, left_out = _read_html(converted.value)
    messages = "\n".join(one.message for one in converted.messages)
    ignored = re.findall(r"element was ignored.*?(\w+)$", messages, re.MULTILINE)
    left_out += sorted({f"elements {name}" for name in ignored})
    with zipfile.ZipFile(io.BytesIO(raw)) as parts:
        for part in ("header", "footer", "comments"):
            names = [name for name in parts.namelist() if name.startswith(f"word/{part}")]
            if any(b"<w:t" in parts.read(name) for name in names):
                left_out.append(part)
    return text, left_out


def _read_pdf(raw: bytes) -> tuple[str, list[str]]:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(raw))
    if reader.is_encrypted and not reader.decrypt(""):
        raise DataError("the PDF is encrypted. Save it without a password.")
    texts = [page.extract_text() for page in reader.pages]
    empty = [str(number) for number, text in enumerate(texts, start=1) if not text.strip()]
    note = f"pages without text (scans need OCR): {', '.join(empty)} of {len(texts)}"
    left_out = [note] if empty else []
    with suppress(Exception):  # of objects that no text needs
        notes = [one.get_object() for page in reader.pages for one in page.annotations or ()]
        counts = {
            "pictures": sum(len(page.images) for page in reader.pages),
            "comments": sum("/Contents" in one for one in notes),
            "form fields": len(reader.get_fields() or ()),
        }
        left_out += [f"{name}: {count}" for name, count in counts.items() if count]
    return "\n\n".join(filter(str.strip, texts)), left_out
