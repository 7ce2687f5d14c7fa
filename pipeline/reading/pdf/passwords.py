"""Open PDFs with a password: as given and as SASLprep (RFC 4013) writes it, by PDFium and by qpdf."""

import stringprep
from collections.abc import Iterator
from pathlib import Path
from unicodedata import normalize

import pikepdf

from pipeline.engine.errors import UnitError
from pipeline.reading.pdf import pdfium
from pipeline.reading.sandbox.limits import refused


def save_decrypted(source: Path, target: Path, password: str) -> bool:
    """Write a copy of the PDF that needs no password to `target`; write nothing and return False if `source` opens
    without one.

    Raises `UnitError` like `pdfium.open_document`; code `encrypted`: the password is wrong.
    """
    try:
        with pdfium.open_document(source):
            return False
    except UnitError as error:
        if error.code != "encrypted":
            raise
        wrong = error
    for form in _forms(password):
        try:
            with pdfium.open_document(source, form) as document:
                document.save_decrypted(target)
        except UnitError as error:
            if error.code != "encrypted":
                raise
        else:
            return True
    for form in _forms(password):
        # PDFium calls the password wrong, too, if a file encrypts its streams and its strings differently.
        try:
            # Named by its path, pikepdf would write a file beside it, where this process may not write.
            with pikepdf.open(source, password=form) as pdf, target.open("wb") as file:
                pdf.save(file)
        except pikepdf.PasswordError:
            continue
        except (pikepdf.PikepdfError, OSError, RuntimeError) as error:
            message = f"{source.name} is damaged: the password opens it, but its content cannot be decrypted."
            raise refused(message, "corrupt") from error
        return True
    raise wrong


def _forms(password: str) -> Iterator[str]:
    """Yield the password as given, then as SASLprep writes it, if that differs. Does not refuse any character, as
    SASLprep does for new passwords: the file decides."""
    yield password
    spaced = (" " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c))
    prepared = normalize("NFKC", "".join(spaced))
    if prepared != password:
        yield prepared
