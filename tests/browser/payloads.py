"""Texts that run, load or send something in a page that renders them as HTML. A script that runs calls `hurt`."""

STRANGER = "stranger.invalid"
PAYLOADS = (
    "<script>hurt(1)</script>",
    '"><img src=x onerror=hurt(2)>',
    "'><svg/onload=hurt(3)>",
    "</title></textarea></style><script>hurt(4)</script>",
    "javascript:hurt(5)",
    '<a href="javascript:hurt(6)">x</a>',
    "[x](javascript:hurt(7)) [y](data:text/html,<script>hurt(7)</script>)",
    f"![x](http://{STRANGER}/8.png) ![y](//{STRANGER}/8.png) <img src=//{STRANGER}/8.png>",
    f'<div hx-get="//{STRANGER}/9" hx-trigger="load">x</div>',
    '<hx-partial hx-target="body" hx-swap="innerHTML"><img src=x onerror=hurt(10)></hx-partial>',
    f'<meta http-equiv="refresh" content="0;url=http://{STRANGER}/11"><base href="//{STRANGER}/">',
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=hurt(12)&gt;">',
    "<iframe srcdoc='<script>parent.hurt(13)</script>'></iframe><object data=javascript:hurt(13)>",
    f"<style>@import url(//{STRANGER}/14.css);body{{background:url(//{STRANGER}/14.png)}}</style>",
    f'<form action="//{STRANGER}/15"><button formaction="javascript:hurt(15)">x</button></form>',
    "{{ 7 * 7 }}{% raw %}${hurt(16)}",
    "<!--><img src=x onerror=hurt(17)>-->",
    "<details open ontoggle=hurt(18)><summary>x</summary></details><input autofocus onfocus=hurt(18)>",
    '" autofocus onfocus=hurt(19) x="',
    "&lt;script&gt;hurt(20)&lt;/script&gt;&#60;script>hurt(20)</script>",
)
MARKDOWN = "\n\n".join(
    f"# {payload}\n\n{payload}\n\n| a | b |\n|---|---|\n| {payload.replace('|', '')} | `{payload}` |"
    for payload in PAYLOADS
)
FILE_NAMES = tuple(payload.replace("/", "∕").replace("\\", "")[:120] + ".pdf" for payload in PAYLOADS)
