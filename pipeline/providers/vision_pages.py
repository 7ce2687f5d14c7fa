"""Convert pages to Markdown with a vision model that reads their pictures, as the model's preset says.

A page takes up to `MOST_PASSES` passes: a reply that fails its checks changes how the next pass asks. Each raw reply is
kept with the facts to parse it again (`Answer.reply`).
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.providers import presets
from pipeline.providers.presets import Fields, Preset, Task
from pipeline.providers.protocols import (
    MOST_PASSES,
    Answer,
    Call,
    PageReader,
    PageRef,
    Pass,
    Question,
    RejectedAnswer,
    Usage,
    directly,
)
from pipeline.reading.files.filetype import detect
from pipeline.reading.layout.rotation import turn_box
from pipeline.reading.ocr.rendition import Picture, PictureFacts, Rendition
from pipeline.reading.replies.assembly import assemble
from pipeline.reading.replies.form import Form, Parsed, Region
from pipeline.reading.replies.problems import MINOR, Expected, Problem, check
from pipeline.reading.replies.repetition import Repetition
from pipeline.reading.replies.reply import parse
from pipeline.settings import ProviderProfile

if TYPE_CHECKING:
    from pipeline.providers.openai_compatible import OpenAICompatible

_LARGER, _SMALLER = 1.5, 0.8
_MEDIA_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}
_TASKS: Mapping[str, Task] = {"table": "table", "equation": "formula", "formula": "formula"}
"""The tasks of regions by our name for their kind; any other region is text, and a picture is not read."""
_SILENT = frozenset({"picture", "ignored"})
_LABELS = {"equation": "formula", "reference": "text", "figure_caption": "caption", "table_caption": "caption"}
"""Names of our layout model's kinds that replies have differently."""


class VisionConverter:
    """A `PageConverter` that shows each page's picture to a model."""

    needs_images = True
    paid = True
    falls_back = True

    def __init__(self, service: "OpenAICompatible") -> None:
        """Raises `UserError` if the profile's prompt file has become unusable."""
        self.name = service.name
        self.model = service.model
        profile = service.profile
        self._asking = Asking.of(profile, service.model)
        self.rendition = self._asking.preset.picture
        if "image_dpi" in profile.model_fields_set:
            self.rendition = replace(self.rendition, dpi=profile.image_dpi, longest=0, shortest=0)
        self._reader = _VisionReader(service, self._asking, self.rendition)
        self._prompt_hash = hashlib.sha256("\n".join(self._asking.prompts.values()).encode()).hexdigest()
        questions = [asdict(self._asking.question(task)) for task in self._asking.prompts]
        preset = [self._asking.preset.id, self._asking.preset.version]
        self._facts = json.dumps([self.name, profile.base_url, self.model, preset, questions]).encode()

    def survey(self, source: Path, pages: Sequence[int], tick: Callable[[], object]) -> str:  # noqa: ARG002
        """Return an empty profile: the model sees one page at a time."""
        return ""

    def open(self, source: Path, survey: str = "") -> AbstractContextManager[PageReader]:  # noqa: ARG002 (pictures suffice)
        """Return a reader. It does not open `source`: the pictures of the pages show everything."""
        return nullcontext(self._reader)

    def cache_key(self, page: PageRef) -> tuple[str, str]:
        """Return (key, prompt hash), hex. Raises `UnitError` if the picture cannot be read."""
        image, _ = read_image(page)
        return hashlib.sha256(hashlib.sha256(image).digest() + self._facts).hexdigest(), self._prompt_hash


@dataclass(frozen=True)
class Asking:
    """A preset with the changes that a profile makes to it."""

    preset: Preset
    prompts: Mapping[Task, str]
    sampling: Fields
    max_tokens: int
    most_tokens: int

    @classmethod
    def of(cls, profile: ProviderProfile, model: str) -> Self:
        """Return the preset for a model with the profile's changes. Raises `UserError`."""
        preset = presets.chosen(profile, model)
        try:
            own = profile.prompt
        except ValueError as error:
            raise UserError(f"the prompt file of the settings cannot be used: {error}", code="settings") from error
        task: Task = "page" if "page" in preset.prompts else "text"
        prompts = {**preset.prompts, task: own} if own else preset.prompts
        sampling = dict(preset.sampling)
        if profile.temperature is not None:
            sampling["temperature"] = profile.temperature
        has_limit = "max_tokens" in profile.model_fields_set
        limits = (profile.max_tokens,) * 2 if has_limit else (preset.max_tokens, preset.most_tokens)
        preset = replace(preset, extra={**preset.extra, **profile.request_fields})
        return cls(preset, prompts, sampling, *limits)

    def question(self, task: Task, plan: "Plan | None" = None) -> Question:
        """Return the request for a task, of the first pass or of another one."""
        retry = plan.retry if plan else 0
        retries = self.preset.retries
        changed = retries[min(retry, len(retries)) - 1] if retry and retries else {}
        fields = {**self.sampling, **self.preset.by_task.get(task, {}), **changed, **self.preset.extra}
        tokens = self.most_tokens if plan and plan.more_tokens else self.max_tokens
        preset = self.preset
        return Question(self.prompts[task], preset.system, preset.picture_first, preset.detail, tokens, fields)


@dataclass(frozen=True)
class Plan:
    """How a pass differs from the first one. `retry`: which of the preset's `retries` applies, from 1."""

    retry: int = 0
    more_tokens: bool = False
    turn: int = 0
    larger: bool = False
    halves: bool = False
    filtered: int = 0
    """How often the provider's filter struck. Each time, the picture shrinks, since a filter may pass another one."""

    def after(self, parsed: Parsed, codes: Sequence[str], asking: Asking, page: PageRef) -> "Plan | None":
        """Return how to ask after a reply with these problems; None if nothing more can be tried."""
        can_draw, whole = page.drawing is not None, asking.preset.steps == "page"
        if parsed.rotation and not self.turn and can_draw and whole:
            return replace(self, turn=parsed.rotation)
        if "reasoning" in codes or ("truncated" in codes and "repeated" not in codes):
            if not self.more_tokens and asking.most_tokens > asking.max_tokens:
                return replace(self, more_tokens=True)
            may_halve = "reasoning" not in codes  # a model reasons as long about half of a page
            return replace(self, halves=True) if may_halve and can_draw and whole and not self.halves else None
        if "low_recall" in codes and self.retry:  # the page is a chart, a map or the like: another call says the same
            return None
        if "empty" in codes and not self.larger and can_draw and whole:
            return replace(self, larger=True)
        return replace(self, retry=self.retry + 1, filtered=self.filtered + ("filtered" in codes))


@dataclass
class _Part:
    """A request about a part of the page, and its reply. `box`: in pixels of the page's picture; None: all of it."""

    task: Task
    label: str = ""
    box: tuple[float, float, float, float] | None = None
    turn: int = 0
    size: tuple[int, int] = (0, 0)
    text: str = ""
    reason: str = ""
    problems: list[Problem] = field(default_factory=list)
    is_read: bool = False

    def kept(self) -> dict[str, Any]:
        """Return the fields that parsing needs."""
        return {name: getattr(self, name) for name in ("task", "label", "box", "turn", "size", "text", "reason")}


class _VisionReader:
    def __init__(self, service: "OpenAICompatible", asking: Asking, rendition: Rendition) -> None:
        self._service = service
        self._asking = asking
        self._rendition = rendition

    def convert(self, page: PageRef) -> Answer:
        """Return the Markdown of one page. Raises `UnitError`; `RejectedAnswer` if all replies fail their checks."""
        done = list(self.passes(page, directly))
        if not done[-1].error:
            return done[-1].answer
        raise done[-1].error

    def passes(self, page: PageRef, call: Call) -> Iterator[Pass]:
        """Yield the passes over a page, the last of which may be good. `call` makes each request. Raises `UnitError`.

        Together they take at most about `MOST_PASSES` times the profile's `timeout_s`."""
        ends = time.monotonic() + MOST_PASSES * self._service.profile.timeout_s
        plan: Plan | None = Plan()
        parts: list[_Part] = []
        for _ in range(MOST_PASSES):
            assert plan is not None
            made: list[Answer] = []

            def ask(key: str, send: Callable[[], Answer], made: list[Answer] = made) -> Answer:
                if time.monotonic() > ends:
                    message = f"provider '{self._service.name}' takes too long for page {page.number}"
                    raise UnitError(message, code="timeout")
                made.append(call(key, send))
                return made[-1]

            try:
                facts, parts = self._pass(page, plan, parts, ask)
            except RejectedAnswer as rejected:  # another request would end like this one
                yield Pass(rejected.answer, rejected, (Problem("reasoning", str(rejected)),))
                return
            parsed = _parsed(facts)
            problems = [problem for part in parts for problem in part.problems]
            if parsed.rotation and plan.turn != parsed.rotation:
                problems.append(Problem("structure", f"the page is turned by {parsed.rotation} degrees"))
            answer = answer_of(facts, page.number, self._service.model, parsed)
            answer = replace(answer, model=made[-1].model if made else answer.model, usage=_sum(made))
            serious = [problem for problem in problems if problem.code not in MINOR]
            error = self._rejected(page, plan, serious, answer) if serious else None
            yield Pass(answer, error, tuple(problems))
            if not serious:
                return
            plan = plan.after(parsed, [problem.code for problem in serious], self._asking, page)
            if plan is None:
                return

    def _rejected(self, page: PageRef, plan: Plan, problems: Sequence[Problem], answer: Answer) -> RejectedAnswer:
        name, code = self._service.name, problems[0].code
        if code in {"reasoning", "filtered"}:
            message = problems[0].detail
        elif code == "truncated":
            limit = self._asking.most_tokens if plan.more_tokens else self._asking.max_tokens
            message = (
                f"the answer of provider '{name}' for page {page.number} stops at its limit of {limit} tokens: raise "
                f"PENSTOCK_PROVIDERS__{name.upper()}__MAX_TOKENS"
            )
        else:
            message = f"the answer of provider '{name}' for page {page.number} is not used: {problems[0].detail}"
        return RejectedAnswer(message, answer, code)

    def _pass(
        self, page: PageRef, plan: Plan, before: Sequence[_Part], call: Call
    ) -> tuple[dict[str, Any], list[_Part]]:
        """Make the requests of a pass; return the facts to parse its replies, and its parts. `before`: the parts of the
        pass before, whose good replies stay."""
        rendition = replace(self._rendition, turn=plan.turn)
        if plan.larger:
            rendition = replace(rendition.scaled(_LARGER), format="png")
        elif plan.filtered and self._asking.preset.steps == "page":  # boxes of parts are in pixels of the picture
            rendition = rendition.scaled(_SMALLER**plan.filtered)
        image = page.image
        if rendition != self._rendition and page.drawing is not None:
            name = "-".join(str(value) for value in (plan.turn, plan.larger, plan.filtered))
            image = page.drawing.draw(rendition, name)
        shown = replace(page, image=image)
        data, media_type = read_image(shown)
        known = PictureFacts.read(image) if image else None
        whole = Picture(data, media_type, *((known.width, known.height) if known else ()))
        expected = Expected(known.words or None, known.blank) if known else Expected()
        parts = self._plan_parts(shown, plan, before, whole, call)
        unread = [part for part in parts if not part.is_read]
        for part, picture in zip(unread, self._pictures(shown, whole, unread), strict=True):
            self._ask(part, picture, plan, expected if len(parts) == 1 else Expected(), call)
        facts: dict[str, Any] = {
            "preset": self._asking.preset.id,
            "turn": plan.turn,
            "size": [whole.width, whole.height],
            "page": [known.page_width, known.page_height, known.unit] if known else None,
            "parts": [part.kept() for part in parts],
        }
        return facts, parts

    def _plan_parts(
        self, page: PageRef, plan: Plan, before: Sequence[_Part], whole: Picture, call: Call
    ) -> list[_Part]:
        """Return the parts to ask about; those of the pass before that are good are read already."""
        preset = self._asking.preset
        if preset.steps == "page":
            if not plan.halves or page.drawing is None or page.image is None:
                return [_Part("page")]
            row = page.drawing.middle(page.image)
            halves = (
                (0.0, 0.0, float(whole.width), float(row)),
                (0.0, float(row), float(whole.width), float(whole.height)),
            )
            return [_Part("page", box=box) for box in halves]
        if before and not any(part.task == "layout" and _serious(part) for part in before):
            return [part if not _serious(part) else replace(part, is_read=False, problems=[]) for part in before]
        if page.drawing is None or page.image is None:  # nothing can be cut out: the page is one text
            return [_Part("text", "text")]
        form = preset.form_of("text")
        if preset.steps == "own_layout":
            seen = [(_LABELS.get(kind, kind), box, 0) for kind, box in page.drawing.regions(page.image)]
            layout: list[_Part] = []
        else:
            found = _Part("layout")
            picture = self._drawn(page, whole, Rendition(0, exact=(1036, 1036), format="png"))
            self._ask(found, picture, plan, Expected(), call)
            size = (whole.width, whole.height)
            regions = parse(preset.form_of("layout"), found.text, size).regions
            seen = [(region.label, region.box, region.turn) for region in regions if region.box]
            layout = [replace(found, size=size)]
            seen = seen or [("text", (0.0, 0.0, float(whole.width), float(whole.height)), 0)]
        kinds = ((label, box, turn, form.label(label)) for label, box, turn in seen)
        return layout + [
            _Part(_TASKS.get(kind, "text"), label, box, turn, is_read=kind in _SILENT)
            for label, box, turn, kind in kinds
        ]

    def _pictures(self, page: PageRef, whole: Picture, parts: Sequence[_Part]) -> list[Picture]:
        if all(part.box is None for part in parts):
            return [whole for _ in parts]
        assert page.drawing is not None
        assert page.image is not None
        preset = self._asking.preset
        rendition = preset.crop if preset.steps != "page" else Rendition(0, format="png")
        return page.drawing.parts(page.image, [(part.box, part.turn) for part in parts if part.box], rendition)

    def _drawn(self, page: PageRef, whole: Picture, rendition: Rendition) -> Picture:
        assert page.drawing is not None
        assert page.image is not None
        box = (0.0, 0.0, float(whole.width), float(whole.height))
        return page.drawing.parts(page.image, [(box, 0)], rendition)[0]

    def _ask(self, part: _Part, picture: Picture, plan: Plan, expected: Expected, call: Call) -> None:
        """Make a request, and put the reply and its problems into `part`."""
        question = self._asking.question(part.task, plan)
        facts = json.dumps([asdict(question), plan.retry], sort_keys=True).encode()
        key = hashlib.sha256(hashlib.sha256(picture.data).digest() + facts).hexdigest()
        part.size, part.is_read = (picture.width, picture.height), True
        try:
            answer = call(key, lambda: self._service.show(picture, question, Repetition().feed))
        except UnitError as error:
            if error.code != "refused":
                raise
            part.text, part.reason, part.problems = "", "content_filter", [Problem("filtered", str(error))]
            return
        part.text, part.reason = answer.text, "length" if answer.truncated else "stop"
        parsed = parse(self._asking.preset.form_of(part.task), part.text, part.size)
        if answer.is_reasoning or (answer.truncated and parsed.only_thoughts):
            part.problems = [Problem("reasoning", self._service.on_reasoning(answer))]
            return
        prompt = question.prompt if len(question.prompt) > 200 else ""
        part.problems = check(part.text, parsed, finish_reason=part.reason, expected=replace(expected, prompt=prompt))


def answer_of(reply: Mapping[str, Any], page: int, model: str, parsed: Parsed | None = None) -> Answer:
    """Return the Markdown and layout of a kept `Answer.reply`, parsed again. `page`: its number in the file."""
    if "layout" in reply:  # from a node, which parses itself
        blocks = [{**block, "page": page} for block in reply["layout"]["blocks"]]
        return Answer(reply["text"], model, layout={**reply["layout"], "blocks": blocks}, reply=dict(reply))
    parsed = parsed or _parsed(reply)
    truncated = any(part["reason"] == "length" for part in reply["parts"])
    layout = _layout(reply, parsed, page) if reply["page"] and parsed.blocks else None
    return Answer(parsed.text, model, truncated=truncated, layout=layout, reply=dict(reply))


def _layout(reply: Mapping[str, Any], parsed: Parsed, page: int) -> dict[str, Any]:
    """Return the blocks with their boxes in the page's unit, on the page as it stands in the file."""
    width, height = reply["size"]
    turn = reply["turn"]
    page_width, page_height, unit = reply["page"]
    upright_size = (width, height)
    if turn in {90, 270}:
        width, height, page_width, page_height = height, width, page_height, page_width
    across, down = page_width / max(width, 1), page_height / max(height, 1)

    def placed(block: dict[str, Any]) -> dict[str, Any]:
        if block.get("bbox") is None:
            return {**block, "page": page}
        left, top, right, bottom = turn_box(tuple(block["bbox"]), -turn % 360, *upright_size)
        box = [round(left * across, 1), round(top * down, 1), round(right * across, 1), round(bottom * down, 1)]
        return {**block, "page": page, "bbox": box}

    blocks = [placed(block) for block in parsed.blocks]
    return {"width": page_width, "height": page_height, "unit": unit, "blocks": blocks}


def _parsed(reply: Mapping[str, Any]) -> Parsed:
    """Parse the replies of a pass; boxes are in pixels of the page's picture."""
    preset = presets.named(reply["preset"])
    parts = reply["parts"]
    size = (int(reply["size"][0]) or 1, int(reply["size"][1]) or 1)
    if preset.steps != "page":
        regions = [_region(preset, part) for part in parts if part["task"] != "layout"]
        return assemble(Form("markdown", None), regions, size)
    read = [parse(preset.form_of(part["task"]), part["text"], _size(part)) for part in parts]
    if len(read) == 1:
        return read[0]
    blocks = [
        {**block, "bbox": _moved(block.get("bbox"), part["box"])}
        for part, parsed in zip(parts, read, strict=True)
        for block in parsed.blocks
    ]
    text = "\n\n".join(parsed.text for parsed in read if parsed.text)
    return Parsed(text, blocks, complete=all(parsed.complete for parsed in read))


def _region(preset: Preset, part: Mapping[str, Any]) -> Region:
    """Return a part of the page with its text; a table stays as the model wrote it, for its cells."""
    text = part["text"]
    if part["task"] == "text":
        text = parse(preset.form_of("text"), text, _size(part)).text
    return Region(part["label"] or "text", text, tuple(part["box"]) if part["box"] else None)


def _size(part: Mapping[str, Any]) -> tuple[int, int]:
    width, height = part["size"]
    return width or 1, height or 1


def _moved(box: Sequence[float] | None, part: Sequence[float]) -> list[float] | None:
    return [box[0] + part[0], box[1] + part[1], box[2] + part[0], box[3] + part[1]] if box else None


def _serious(part: _Part) -> bool:
    return any(problem.code not in MINOR for problem in part.problems)


def _sum(answers: Sequence[Answer]) -> Usage:
    usages = [answer.usage for answer in answers]
    note = next((usage.note for usage in usages if usage.note), "")
    tokens_in, tokens_out = sum(usage.input_tokens for usage in usages), sum(usage.output_tokens for usage in usages)
    return Usage(tokens_in, tokens_out, note, sum(usage.reasoning_tokens for usage in usages))


def read_image(page: PageRef) -> tuple[bytes, str]:
    """Read (bytes, media type) of a page's picture. Raises `UnitError`: `no_image`, `image_unreadable`, `bad_image`."""
    if page.image is None:
        raise UnitError(f"page {page.number} has no picture", kind=ErrorKind.PERMANENT, code="no_image")
    try:
        data = page.image.read_bytes()
    except OSError as error:
        message = f"the picture of page {page.number} cannot be read: {error.strerror}"
        raise UnitError(message, kind=ErrorKind.TRANSIENT, code="image_unreadable") from error
    media_type = _MEDIA_TYPES.get(detect(data) or "")
    if media_type is None:
        message = f"the picture of page {page.number} is not PNG, JPEG or WebP"
        raise UnitError(message, kind=ErrorKind.PERMANENT, code="bad_image")
    return data, media_type
