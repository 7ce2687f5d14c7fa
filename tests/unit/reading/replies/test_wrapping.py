import pytest

from pipeline.reading.replies.wrapping import answer, unwrap


@pytest.mark.parametrize(
    ("text", "unwrapped"),
    [
        ("# A\n\ntext", "# A\n\ntext"),
        ("```markdown\n# A\n```", "# A"),
        ("\n```md\r\n# A\r\n\r\n```\n", "# A"),
        ("``` Markdown\n# A\n```", "# A"),
        ("```markdown\n```", ""),
        ("```markdown\na\n```python\nx\n```\nb\n```", "a\n```python\nx\n```\nb"),
        ("```markdown\na\n```\nx\n```\nb\n```", "a\n```\nx\n```\nb"),
        ("```markdown\na\n```\nb\n```python\nx\n```", "```markdown\na\n```\nb\n```python\nx\n```"),
        ("```\ncode\n```", "```\ncode\n```"),
        ("```python\ncode\n```", "```python\ncode\n```"),
        ("```markdown\nno end", "```markdown\nno end"),
        ("    indented\n\n", "    indented"),
        ("a\u2028b\x0cc", "a\u2028b\x0cc"),
        (" \n \n", ""),
        ("", ""),
        ("Here is the page in Markdown:\n\n```markdown\n# A\n```", "# A"),
        ("It lists:\n- a\n- b", "It lists:\n- a\n- b"),
    ],
)
def test_only_a_fence_around_the_whole_answer_is_taken_off(text: str, unwrapped: str) -> None:
    assert unwrap(text) == unwrapped


@pytest.mark.parametrize(
    ("raw", "text", "only_thoughts"),
    [
        ("<think>hm</think>\n\n# A", "# A", False),
        ("the page shows A\n</think>\n# A", "# A", False),
        ("<think>no end", "", True),
        ("<think>hm</think>\n", "", True),
        ("# A<|im_end|>", "# A", False),
        ("# A</s>\n<|endoftext|>", "# A", False),
        ("Tags such as </think> end thoughts.", "Tags such as </think> end thoughts.", False),
    ],
)
def test_thoughts_and_end_tokens_are_taken_off(raw, text, only_thoughts):
    assert answer(raw) == (text, only_thoughts)
