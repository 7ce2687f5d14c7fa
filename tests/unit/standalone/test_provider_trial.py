"""The judgement of a provider's reply for the known page, and its advice."""

import pytest

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GateClosed
from pipeline.operations.providers import Check
from pipeline.providers import presets
from pipeline.providers.protocols import Answer, RejectedAnswer, Usage
from pipeline.reading.replies.problems import Problem
from pipeline.settings import ProviderProfile
from pipeline.settings.providers import Price
from pipeline.standalone.provider_trial import WORDS, Trial, judge

PROFILE = ProviderProfile(model="deepseek-ai/DeepSeek-OCR-2", prices={"*": Price(input=1, output=2)})
PRESET = presets.named("deepseek-ocr")
BLOCKS = {"blocks": [{"text": "a", "bbox": [0, 0, 1, 1]}, {"text": "b", "bbox": None}]}


def judged(trial: Trial, profile: ProviderProfile = PROFILE, preset: presets.Preset = PRESET) -> dict[str, Check]:
    return {check.name: check for check in judge("x", profile, preset, trial)}


def rejected(answer: Answer, code: str) -> RejectedAnswer:
    return RejectedAnswer("not used", answer, code)


def test_a_good_reply_is_described_with_its_time_and_price() -> None:
    answer = Answer(WORDS, "m", Usage(1000, 400), layout=BLOCKS)
    checks = judged(Trial(answer, took_ms=2000, cost=0.0018))
    assert {check.result for check in checks.values()} == {"ok"}
    assert {check.advice for check in checks.values()} == {""}
    assert checks["preset"].found == "deepseek-ocr, by the model's name"
    assert checks["blocks"].found == "ref_det: 2 blocks, 1 with boxes"
    assert checks["time"].found == "2.0 s, 1,000 tokens in, 400 out, 200 tokens/s"
    assert "1.80 for 1,000" in checks["price"].found


@pytest.mark.parametrize(
    ("code", "preset", "advice"),
    [
        ("truncated", "deepseek-ocr", "MAX_TOKENS"),
        ("structure", "deepseek-ocr", "skip_special_tokens"),
        ("structure", "mineru2.5", "skip_special_tokens"),
        ("structure", "chandra", "chat template"),
        ("prompt_echo", "chandra", "chat template"),
        ("empty", "general", "has not seen the picture"),
        ("repeated", "lightonocr-3", "vLLM 0.30"),
    ],
)
def test_a_grave_problem_fails_with_advice(code: str, preset: str, advice: str) -> None:
    answer = Answer(WORDS, "m", truncated=code == "truncated")
    problem = Problem(code, "what is wrong")  # type: ignore[arg-type]
    reply = judged(Trial(answer, rejected(answer, code), [problem]), preset=presets.named(preset))["reply"]
    assert (reply.result, reply.found.startswith("what is wrong")) == ("fail", True)
    assert advice in reply.advice
    assert ("finish reason: length" in reply.found) == (code == "truncated")


def test_a_model_that_reasons_until_its_limit_is_not_said_to_be_blind() -> None:
    problem = Problem("reasoning", "turn reasoning off")
    checks = judged(Trial(Answer("", "m", truncated=True), problems=[problem]))
    assert checks["reply"].found == "turn reasoning off"
    assert "MAX_TOKENS" in checks["reply"].advice
    assert not checks.keys() & {"words", "blocks"}


def test_a_small_problem_is_a_warning() -> None:
    trial = Trial(Answer(WORDS, "m"), problems=[Problem("unequal_table", "1 tables")])
    assert judged(trial)["reply"].result == "warn"


@pytest.mark.parametrize(("share", "result"), [(1.0, "ok"), (0.7, "warn"), (0.2, "fail")])
def test_missing_words_mean_that_the_model_reads_badly_or_saw_nothing(share: float, result: str) -> None:
    words = WORDS.split()
    check = judged(Trial(Answer(" ".join(words[: round(len(words) * share)]), "m")))["words"]
    assert (check.result, bool(check.advice)) == (result, result != "ok")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (UnitError("x: Unsupported value: 'temperature'", code="bad_request"), "openai-reasoning"),
        (UnitError("x: maximum context length is 4096 tokens", code="too_large"), "OLLAMA_CONTEXT_LENGTH"),
        (UnitError("x failed (500)", code="server_error"), "vllm serve"),
        (GateClosed("the gate closed (breaker)"), "penstock breakers close x:vision"),
        (UnitError("refused the key: check API_KEY", kind=ErrorKind.UNAVAILABLE, code="auth"), ""),
    ],
)
def test_an_error_instead_of_a_reply_fails_with_advice(error: UnitError, advice: str) -> None:
    reply = judged(Trial(error=error))["reply"]
    assert (reply.result, reply.found) == ("fail", str(error))
    assert advice in reply.advice
    assert bool(advice) == bool(reply.advice)


def test_a_model_without_a_preset_of_its_own_gets_a_hint() -> None:
    checks = judged(Trial(Answer(WORDS, "m")), ProviderProfile(model="mine"), presets.named("general"))
    assert "set PRESET" in checks["preset"].advice
    assert "unknown" in checks["price"].found
