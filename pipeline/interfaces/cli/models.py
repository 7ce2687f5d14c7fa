"""`penstock models`: the presets for models made for documents."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.command import Json, all_settings
from pipeline.interfaces.cli.output import err, escape, one_line, print_json, print_list, print_pairs

if TYPE_CHECKING:
    from pipeline.providers.presets import Preset
    from pipeline.reading.ocr.rendition import Rendition
    from pipeline.settings import Settings

_PROMPT_CHARS = 100


def models(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A preset, or a model's name: show its preset.")] = "",
    as_json: Json = False,
) -> None:
    """List the presets for models: what their servers need, licences, scores, and your providers that use each."""
    from pipeline.providers.presets import PRESETS

    users = _users(all_settings())

    def facts(preset: "Preset") -> dict[str, Any]:
        return asdict(preset) | {"has_boxes": preset.has_boxes, "providers": users.get(preset.id, [])}

    def cells(preset: "Preset") -> list[str]:
        names = one_line(", ".join(users.get(preset.id, [])))
        boxes = "yes" if preset.has_boxes else ""
        return [preset.id, names, boxes, _scores(preset, ", "), preset.licence, escape(preset.hint)]

    if name:
        preset = _preset(name)
        if as_json:
            print_json(facts(preset))
        else:
            _show(preset, users.get(preset.id, []))
    elif as_json:
        print_json([facts(preset) for preset in PRESETS])
    else:
        columns = ("PRESET", "PROVIDERS", "BOXES?", "SCORES?~", "LICENCE~", "THE SERVER NEEDS")
        print_list(PRESETS, columns, cells, as_json=False, none="")


def _users(settings: "Settings") -> dict[str, list[str]]:
    """The names of the providers that use each preset."""
    from pipeline.providers import presets

    users: dict[str, list[str]] = {}
    for name, profile in sorted(settings.providers.items()):
        if profile.kind == "nodes":  # a node asks in its own way
            continue
        try:
            users.setdefault(presets.chosen(profile, profile.model).id, []).append(name)
        except UserError as error:
            err.print(f"{one_line(name)}: {escape(str(error))}", soft_wrap=True)
    return users


def _preset(name: str) -> "Preset":
    """The preset of this name, or for the model of this name. Raises `UserError`."""
    from pipeline.providers import presets
    from pipeline.settings import ProviderProfile

    try:
        return presets.named(name)
    except UserError:
        preset = presets.chosen(ProviderProfile(), name)
        if preset.id == presets.GENERAL:
            raise
        return preset


def _scores(preset: "Preset", between: str) -> str:
    return between.join(f"{benchmark}: {score}" for benchmark, score in preset.scores.items())


def _show(preset: "Preset", users: list[str]) -> None:
    forms = {"page": preset.form, **preset.forms} if preset.steps == "page" else dict(preset.forms)
    steps = {
        "page": "one call for the page",
        "own_layout": "Penstock's layout model finds the parts of the page; a call for each",
        "layout": "a call finds the parts of the page; then a call for each",
    }
    pictures = [_picture(preset.picture)]
    if preset.steps != "page":
        pictures.append(f"parts: {_picture(preset.crop)}")
        forms = {"text": preset.form_of("text"), **forms}
    retries = "; then ".join(_fields(dict(fields)) for fields in preset.retries)
    pairs = [
        ("preset", preset.id),
        ("models", ", ".join(preset.match) or "by PRESET only" if preset.id != "general" else "every other model"),
        ("your providers", ", ".join(users) or "none"),
        ("steps", steps[preset.steps]),
        ("system prompt", preset.system),
        ("prompt", "\n".join(f"{task}: {_prompt(text)}" for task, text in preset.prompts.items())),
        ("picture", "\n".join(pictures)),
        ("order", "picture, then text" if preset.picture_first else "text, then picture"),
        ("sampling", _fields(dict(preset.sampling)) or "none is sent"),
        ("after a bad reply", retries),
        ("tokens", f"{preset.max_tokens:,}; after a reply that is cut off {preset.most_tokens:,}"),
        ("also sent", _fields(dict(preset.extra))),
        ("reply", ", ".join(f"{task}: {form.kind}" for task, form in forms.items())),
        ("boxes", "yes" if preset.has_boxes else "no"),
        ("licence", preset.licence),
        ("scores", _scores(preset, "\n")),
        ("the server needs", preset.hint),
        ("source", preset.source),
    ]
    print_pairs([(label, escape(value)) for label, value in pairs if value])


def _prompt(text: str) -> str:
    """A prompt in words: long ones are in Penstock's words."""
    if not text:
        return "none, the picture alone"
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= _PROMPT_CHARS else f'"{line[:_PROMPT_CHARS]}…" ({len(text):,} characters)'


def _picture(picture: "Rendition") -> str:
    sized = f"longest side {picture.longest:,} pixels" if picture.longest else "in the file's own size"
    size = f"{picture.dpi:g} dpi" if picture.dpi else sized
    more = [
        f"shortest side at least {picture.shortest:,} pixels" if picture.shortest else "",
        f"at least {picture.least_pixels:,} pixels" if picture.least_pixels else "",
        f"at most {picture.most_pixels:,} pixels" if picture.most_pixels else "",
        f"sides are multiples of {picture.multiple}" if picture.multiple > 1 else "",
        "PNG or JPEG" if picture.format == "auto" else picture.format.upper(),
    ]
    return ", ".join([size, *filter(None, more)])


def _fields(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items())
