"""A trial of a provider: one known page, read once as a page of a document would be, and a judgement of the reply."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from uuid import uuid4

from redis import RedisError

from pipeline.engine import traces
from pipeline.engine.errors import UnitError
from pipeline.engine.guarded_call import GateClosed, earlier_answers
from pipeline.engine.kept_answers import Subject
from pipeline.engine.nouns import count
from pipeline.engine.views import money
from pipeline.flows.documents.plan import queue_of
from pipeline.flows.documents.work.escalation import PAGE_OPERATION
from pipeline.operations.providers import FAIL, OK, WARN, Check, provider_check
from pipeline.process import get_context
from pipeline.providers import gates, presets, registry
from pipeline.providers.drawing import Drawing
from pipeline.providers.presets import GENERAL, Preset
from pipeline.providers.protocols import Answer, PageRef, ServiceConverter, ServiceReader
from pipeline.providers.traced_call import Tracer, in_turn
from pipeline.reading.replies.problems import MINOR, Code, Problem, recall
from pipeline.reading.sandbox.limits import page_limits
from pipeline.settings import LOCAL, ProviderProfile, Settings
from pipeline.standalone.stack import using_stack

HEADING = "The water mill of Ashford"
PARAGRAPH = (
    "The mill stands below the village, where the river falls four metres.",
    "Since 1874 three families have ground wheat, barley and oats there.",
    "A new wheel of larch replaced the old one after the great flood.",
)
TABLE = (("Month", "Grain", "Flour"), ("March", "412", "305"), ("April", "388", "291"), ("October", "957", "716"))
WORDS = " ".join((HEADING, *PARAGRAPH, *(cell for row in TABLE for cell in row))).replace(",", "").replace(".", "")
"""The words of the page."""
GOOD_SHARE, BAD_SHARE = 0.9, 0.5
_SIDES = 1240, 1754
_BEGINNING = 80
_GATE_S = 30.0
"""How long a call waits for its turn at the provider's gate."""

_UNSEEN = "The model has not seen the picture: check the server's chat template, and that the model reads pictures."
_ADVICE: Mapping[Code, str] = {
    "truncated": "The server's context or MAX_TOKENS is too short for the picture and the answer together.",
    "repeated": "The sampling or the server's version does not suit the model.",
    "thoughts_only": "Switch the model's thoughts off, or start the server with its reasoning parser.",
    "reasoning": "Or raise MAX_TOKENS and TIMEOUT_S, and pay for the reasoning of each page.",
    "filtered": "Each page gets two more requests, since filters may strike at random; then this machine converts it. "
    "Loosen the service's filter, or use another model, if it strikes often.",
    "prompt_echo": "The server's chat template does not suit the model.",
}
_OF_THE_SERVICE: frozenset[Code] = frozenset({"reasoning", "filtered"})
"""Problems for which the answer's text says nothing about the model."""
_NO_TAGS = (
    "The server drops the model's special tokens, although the request has `skip_special_tokens: false`, or its chat "
    "template does not suit the model."
)
_NO_FORM = "The server's chat template does not suit the model, or the model does not suit the preset."
_WITH_TOKENS = frozenset({"ref_det", "doctags", "layout_tokens"})


@dataclass(frozen=True)
class Trial:
    """The reply for the known page. `error`: the reason for no answer, or for an answer that a document would not use.
    `took_ms`, `cost`: of all calls."""

    answer: Answer | None = None
    error: UnitError | None = None
    problems: Sequence[Problem] = ()
    took_ms: int = 0
    cost: float = 0.0


def checks(settings: Settings, name: str) -> list[Check]:
    """Let a provider read the known page; return what came of it.

    The calls pass the provider's gate, count in its limits and costs, and are on record. Starts the stack if it must,
    since gates are in Redis. Raises `UserError` for a provider that cannot do work."""
    registry.check(settings, name)
    if name == LOCAL:
        return judge(name, None, None, _by_this_machine(settings))
    reached = provider_check(settings, name)
    if reached.result == FAIL and not gates.answers(settings, name):
        return [reached]
    profile = settings.providers[name]
    preset = None if profile.kind == "nodes" else presets.chosen(profile, profile.model)
    with using_stack(settings):
        trial = _by_service(settings, name)
    return [reached, *judge(name, profile, preset, trial)]


def judge(name: str, profile: ProviderProfile | None, preset: Preset | None, trial: Trial) -> list[Check]:
    """Return the checks of a trial. `profile`: None for `local`; `preset`: None without one."""
    found: list[Check] = []
    if profile and preset:
        by = "by PRESET" if profile.preset else f"no other one knows {profile.model}"
        advice = (
            "`penstock models` lists them; set PRESET if the model has another name" if preset.id == GENERAL else ""
        )
        by = by if profile.preset or preset.id == GENERAL else "by the model's name"
        found.append(Check("preset", OK, f"{preset.id}, {by}", advice if not profile.preset else ""))
    answer, error = trial.answer, trial.error
    if answer is None:
        return [*found, Check("reply", FAIL, str(error), _on_error(name, error, preset) if error else "")]
    hint = f" The server needs: {preset.hint}" if preset and preset.hint else ""
    end = f"finish reason: {'length' if answer.truncated else 'stop'}"
    for code, detail in trial.problems or ([Problem("truncated", str(error))] if error else []):
        is_grave = code not in MINOR
        advice = _on_problem(code, preset) if is_grave else ""
        if code in _OF_THE_SERVICE:
            found += [Check("reply", FAIL, detail, advice), *_figures(profile, trial, answer)]
            return found
        found.append(Check("reply", FAIL if is_grave else WARN, f"{detail} ({end})", advice + hint if advice else ""))
    if not found or found[-1].name != "reply":
        found.append(Check("reply", OK, f"no problems ({end})"))
    found.append(_form(answer, preset))
    share = recall(answer.text, WORDS.split())
    words = f"{share:.0%} of the {len(WORDS.split())} words of the page"
    if share >= GOOD_SHARE:
        found.append(Check("words", OK, words))
    elif share >= BAD_SHARE:
        found.append(Check("words", WARN, words, "A larger picture may help: set IMAGE_DPI."))
    else:
        beginning = (
            f"; the text begins with: {' '.join(answer.text.split())[:_BEGINNING]}" if answer.text.strip() else ""
        )
        found.append(Check("words", FAIL, words + beginning, _UNSEEN + ("" if error else hint)))
    return found + _figures(profile, trial, answer)


def _on_problem(code: Code, preset: Preset | None) -> str:
    if code == "structure":
        kinds = {preset.form.kind, *(form.kind for form in preset.forms.values())} if preset else set()
        return _NO_TAGS if kinds & _WITH_TOKENS else _NO_FORM
    return _ADVICE.get(code, _UNSEEN)


def _on_error(name: str, error: UnitError, preset: Preset | None) -> str:
    """Return advice on an error, beyond that in its message."""
    words = str(error).casefold()
    if isinstance(error, GateClosed):
        return f"`penstock queues` and `penstock breakers` say why; `penstock breakers close {name}:vision` opens it"
    if error.code == "bad_request" and "temperature" in words:
        return "set PRESET=openai-reasoning, which sends none, or another TEMPERATURE"
    if error.code in {"bad_request", "too_large"} and ("context" in words or "max_tokens" in words):
        return "raise the server's context (vLLM: --max-model-len; Ollama: OLLAMA_CONTEXT_LENGTH), or lower MAX_TOKENS"
    if error.code in {"bad_request", "server_error"} and preset and preset.hint:
        return f"the server needs: {preset.hint}"
    return ""


def _form(answer: Answer, preset: Preset | None) -> Check:
    blocks: list[dict[str, Any]] = (answer.layout or {}).get("blocks", [])
    boxes = sum(block.get("bbox") is not None for block in blocks)
    kinds = dict.fromkeys([preset.form.kind, *(form.kind for form in preset.forms.values())]) if preset else ()
    parser = f"{', '.join(kinds)}: " if kinds else ""
    if not blocks:
        wanted = preset and preset.has_boxes
        advice = _on_problem("structure", preset) if wanted else ""
        return Check("blocks", WARN if wanted else OK, f"{parser}Markdown without blocks", advice)
    return Check("blocks", OK, f"{parser}{count(len(blocks), 'block')}, {boxes} with boxes")


def _figures(profile: ProviderProfile | None, trial: Trial, answer: Answer) -> list[Check]:
    seconds, usage = trial.took_ms / 1000, answer.usage
    time_taken = f"{seconds:.1f} s"
    if usage.output_tokens:
        rate = f", {usage.output_tokens / seconds:,.0f} tokens/s" if seconds else ""
        time_taken += f", {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out{rate}"
    if profile is None:
        return [Check("time", OK, time_taken)]
    if profile.price(answer.model) is None:
        return [Check("time", OK, time_taken), Check("price", OK, "unknown: PRICES names none for this model")]
    price = f"{money(trial.cost)} for this page, {trial.cost * 1000:,.2f} for 1,000 such pages"
    return [Check("time", OK, time_taken), Check("price", OK, price)]


def _by_this_machine(settings: Settings) -> Trial:
    with TemporaryDirectory(prefix="penstock-trial-") as folder:
        source, began = draw(Path(folder)), time.monotonic()
        try:
            with registry.page_converter(settings, LOCAL).open(source) as reader:
                answer = reader.convert(PageRef(source, 1))
        except UnitError as error:
            return Trial(error=error)
        return Trial(answer, took_ms=round((time.monotonic() - began) * 1000))


def _by_service(settings: Settings, name: str) -> Trial:
    """Let a service read the page, in one pass."""
    context = get_context()
    gates.close_after_changes(context)
    gates.sync(context)
    converter = cast("ServiceConverter", registry.page_converter(settings, name))
    guarded = gates.guarded_call(context, queue_of(name), f"{traces.TRIAL}:{uuid4().hex}")
    tracer, subject = Tracer(context, guarded), Subject("documents", traces.TRIAL, "1")
    made: list[dict[str, Any]] = []

    def call(_: str, send: Callable[[], Answer]) -> Answer:
        tracer.trace = None
        try:
            return in_turn(
                lambda: tracer.call(subject, "vision", PAGE_OPERATION, name, converter.model, [], send), _GATE_S
            )
        finally:
            if tracer.trace is not None:
                made.append(tracer.trace)
                context.db.run(lambda tx: traces.record(tx, tracer.trace))

    token = earlier_answers.set(time.time_ns())  # a node may not repeat the answer of an earlier trial
    try:
        with TemporaryDirectory(prefix="penstock-trial-") as folder:
            source, chosen = draw(Path(folder)), settings.documents
            limits = page_limits(chosen.page_timeout_s, chosen.reader_memory_mb)
            drawing = Drawing(source, 1, Path(folder), limits, chosen.max_pixels)
            page = PageRef(source, 1, drawing.draw(converter.rendition), None, drawing)
            with converter.open(source) as reader:
                done = next(iter(cast("ServiceReader", reader).passes(page, call)))
    except UnitError as error:
        return Trial(error=error)
    finally:
        earlier_answers.reset(token)
        if guarded is not None:
            with suppress(RedisError):
                guarded.leave()
    took_ms, cost = sum(trace["latency_ms"] for trace in made), sum(trace["cost"] for trace in made)
    return Trial(done.answer, done.error, done.problems, took_ms, cost)


def draw(folder: Path) -> Path:
    """Draw the known page as a PNG file into a folder; return its path."""
    from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415  # import Pillow only when needed

    page = Image.new("L", _SIDES, 255)
    pen, text = ImageDraw.Draw(page), ImageFont.load_default(30)
    pen.text((120, 140), HEADING, 0, ImageFont.load_default(52))
    for row, line in enumerate(PARAGRAPH):
        pen.text((120, 260 + 48 * row), line, 0, text)
    for row, cells in enumerate(TABLE):
        for column, cell in enumerate(cells):
            left, top = 120 + 300 * column, 480 + 64 * row
            pen.rectangle((left, top, left + 300, top + 64), outline=0, width=2)
            pen.text((left + 20, top + 14), cell, 0, text)
    path = folder / "trial.png"
    page.save(path)
    return path
