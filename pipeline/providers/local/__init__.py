"""The provider that needs no service: text layer, layout and OCR on this machine.

`converter.LocalConverter` is what flows use. Importing this package, or converting pages that have a text layer, loads
neither the OCR engine nor its numeric libraries: `ocr` imports them when the first page needs them.
"""
