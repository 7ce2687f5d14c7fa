"""The targets of the fuzzer."""

from tests.fuzz import files, replies, words

TARGETS = {target.name: target for target in (*words.TARGETS, *replies.TARGETS, *files.TARGETS)}
