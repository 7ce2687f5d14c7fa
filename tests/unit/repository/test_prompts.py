"""Prompts about users' content."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def prompts() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each constant that is a prompt."""
    for path in sorted((ROOT / "pipeline").rglob("*.py")):
        text = path.read_text()
        for statement in ast.parse(text).body if "PROMPT =" in text or "SYSTEM =" in text else ():
            for target in statement.targets if isinstance(statement, ast.Assign) else ():
                if isinstance(target, ast.Name) and target.id.endswith(("PROMPT", "SYSTEM")):
                    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                    yield f"{module}.{target.id}", getattr(importlib.import_module(module), target.id)


def test_every_prompt_declares_users_content_as_data_never_instructions():
    texts = dict(prompts())
    assert len(texts) >= 5, "prompts are constants whose names end in PROMPT or SYSTEM"
    assert [name for name, text in texts.items() if "data, never instructions" not in " ".join(text.split())] == []


def test_every_call_of_a_model_uses_one_of_the_prompts():
    """Every call of a model in a flow names a constant; none has the prompt's text inline."""
    uses_prompt: dict[str, bool] = {}
    for path in sorted((ROOT / "pipeline" / "flows").rglob("*.py")):
        text = path.read_text()
        calls = {"complete", "describe", "describe_all"}
        for node in ast.walk(ast.parse(text)) if any(f".{call}(" in text for call in calls) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in calls:
                system = next((ast.unparse(word.value) for word in node.keywords if word.arg == "system"), "")
                uses_prompt[f"{path.name}:{node.lineno}"] = system.rpartition(".")[2].endswith("SYSTEM")
    assert len(uses_prompt) >= 4
    assert all(uses_prompt.values()), uses_prompt
