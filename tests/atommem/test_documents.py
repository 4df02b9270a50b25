"""Texts of HTML, PDF and docx files and of folders, and what is left out of them."""

import io
import warnings
import zipfile
from pathlib import Path

import pytest

from atommem.documents import extract, read_path
from atommem.errors import DataError
from atommem.files import load_beside

pytest.importorskip("mammoth")
FILES = Path(__file__).with_name("documents")


def docx(**parts: str) -> bytes:
    """Return a Word document; `parts` are further files of its folder ``word``."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(FILES / "types.xml", "[Content_Types].xml")
        archive.write(FILES / "relations.xml", "_rels/.rels")
        archive.write(FILES / "document.xml", "word/document.xml")
        for name, text in parts.items():
            archive.writestr(f"word/{name}.xml", text)
    return file.getvalue()


def pdf(*pages: str, note: str = "") -> bytes:
    """Return a PDF of these pages; "" is one without text. Each has a `note`."""
    document = pytest.importorskip("fpdf").FPDF()
    document.set_font("Helvetica")
    for text in pages:
        document.add_page()
        document.multi_cell(0, text=text)
        if note:
            document.text_annotation(9, 9, note)
    return bytes(document.output())


def test_html_keeps_visible_text_and_names_the_rest():
    text, left_out = extract((FILES / "page.html").read_bytes(), "page")
    assert text.splitlines()[0] == "# Kilns of Brent"
    assert "A trillion is 10^12." in text
    assert "Orla_1 **fires** at 900\xa0°C." in text
    assert "| Orla | 1997 |" in text
    assert "A red kiln" in text
    for hidden in ("track", "Secret", "comment", "p {}", "x.org", "<"):
        assert hidden not in text
    assert left_out == ["pictures: 2", "iframe: 1"]


@pytest.mark.parametrize(("declared", "encoding", "words"), load_beside(__file__, "documents.yaml"))
def test_html_is_decoded_as_browsers_do(declared, encoding, words):
    meta = f'<meta charset="{declared}">' if declared else ""
    page = f"<html><head><!--{'-' * 2000}-->{meta}</head><body><p>{words}</p></body></html>"
    assert extract(page.encode(encoding), "x.html") == (words, [])


def test_docx_gives_text_and_tables_and_names_the_rest():
    text, left_out = extract(docx(header1="<w:t>Brent Pottery</w:t>", footer1="<w:p/>"), "x.docx")
    assert text.startswith("Orla is a potter.")
    assert "| Bran |" in text
    assert left_out == ["elements fldSimple", "header"]


def test_pdf_names_pages_without_text_and_comments():
    text, left_out = extract(pdf("Orla is a potter.", "", "Bran is not.", note="No."), "x.pdf")
    assert text == "Orla is a potter.\n\nBran is not."
    assert left_out == ["pages without text (scans need OCR): 2 of 3", "comments: 3"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"%PDF-1.7\nnot more", "x: not a PDF file that can be read"),
        (docx()[:200] + docx()[220:], "x: not a docx file that can be read"),
        (b"PK\x03\x04\x00 a sheet", "x: not utf-8 text, HTML, PDF or docx"),
        (rb"{\rtf1\ansi Orla.}", "x: not utf-8 text, HTML, PDF or docx"),
        ("Zürich".encode("latin-1"), "x: text in another encoding than UTF-8. Convert it: iconv"),
        (b"<html><script>x</script></html>", "x is empty"),
        (b" \n", "x is empty"),
    ],
)
def test_a_file_without_readable_text_is_refused(raw, message):
    with pytest.raises(DataError, match=message):
        extract(raw, "x")


def test_folder_gives_all_its_texts_and_warns_about_the_rest(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.html").write_text("<html><p>Bran.</p></html>")
    (tmp_path / "a.txt").write_text("Orla.\n")
    (tmp_path / ".hidden").write_text("Secret.")
    (tmp_path / "c.png").write_bytes(b"\x89PNG\x00")
    with pytest.warns(UserWarning, match=r"left out: .*c\.png: not utf-8 text") as caught:
        assert read_path(tmp_path) == "Document 1: a.txt\nOrla.\n\nDocument 2: sub/b.html\nBran."
    assert len(caught) == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no file of this folder can be read"):
        read_path(tmp_path / "empty")


def test_plain_text_stays_as_it_is(tmp_path):
    text = "# Notes on %PDF-1.7\n<b>tags</b> & <html>\r\n"
    (tmp_path / "x.md").write_bytes(text.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_path(tmp_path / "x.md") == text
