import pickle
from pathlib import Path

import pytest

from pipeline.settings import Settings
from pipeline.settings.redis_url import RedisUrl, RedisUrlError

SECRET = "Zq9very"
"""A password at many places of a URL, which no error may show."""
SENTINELS = "sentinel://:p%2Fw@s1:1001,s2,[::1]:1003/4?master=mymaster&sentinel_password=x%26y"


def test_one_server() -> None:
    url = RedisUrl.parse("redis://user:p%40ss@cache.example:6380/3")
    assert (url.hosts, url.db) == ((("cache.example", 6380),), 3)
    assert (url.username, url.password, url.tls) == ("user", "p@ss", {})
    assert url.celery == "redis://user:p%40ss@cache.example:6380/3"
    assert url.shown == "redis://cache.example:6380/3"


def test_omitted_parts_of_a_url_have_the_usual_defaults() -> None:
    assert RedisUrl.parse("redis://").hosts == (("localhost", 6379),)
    assert RedisUrl.parse("redis://cache/").db == 0
    assert RedisUrl.parse("redis://cache?db=2").celery == "redis://cache:6379/2"
    assert RedisUrl.parse("redis://:a@b@cache").password == "a@b"


def test_a_socket() -> None:
    url = RedisUrl.parse("unix://:secret@/run/a@b/redis.sock?db=2")
    assert (url.path, url.db, url.password) == ("/run/a@b/redis.sock", 2, "secret")
    assert url.celery == "redis+socket://:secret@/run/a%40b/redis.sock?virtual_host=2"
    assert url.shown == "unix:///run/a@b/redis.sock"


def test_several_sentinels() -> None:
    url = RedisUrl.parse(SENTINELS)
    assert url.hosts == (("s1", 1001), ("s2", 26379), ("::1", 1003))
    assert (url.master, url.db) == ("mymaster", 4)
    assert (url.password, url.sentinel_password) == ("p/w", "x&y")
    assert url.celery == "sentinel://:p%2Fw@s1:1001/4;sentinel://:p%2Fw@s2:26379/4;sentinel://:p%2Fw@[::1]:1003/4"
    assert url.shown == "sentinel://s1:1001,s2:26379,[::1]:1003/4"


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://:pw@s1:1001/4;sentinel://:pw@s2:1002/4?master=mymaster",
        "sentinel://:pw@s1:1001;s2:1002/4?master=mymaster",
        "sentinel://:pw@s1:1001/4?master=mymaster;sentinel://s2:1002",
    ],
)
def test_celery_s_form_of_several_sentinels(url: str) -> None:
    assert RedisUrl.parse(url) == RedisUrl.parse("sentinel://:pw@s1:1001,s2:1002/4?master=mymaster")


def test_certificates_are_verified_unless_the_url_says_otherwise(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.touch()
    assert RedisUrl.parse("rediss://cache").tls == {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    url = RedisUrl.parse(f"rediss://cache?ssl_ca_certs={authority}&ssl_check_hostname=false")
    assert url.tls == {"ssl_ca_certs": str(authority), "ssl_cert_reqs": "required", "ssl_check_hostname": False}
    url = RedisUrl.parse("rediss://cache?ssl_cert_reqs=CERT_NONE")
    assert url.tls == {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
    url = RedisUrl.parse("sentinel://s1,s2?master=m&ssl=true")
    assert url.tls == {"ssl_cert_reqs": "required", "ssl_check_hostname": True}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"http://:{SECRET}@cache", "must begin with redis://, rediss://, unix:// or sentinel://"),
        (SECRET, "must begin with"),
        (f"sentinel://:{SECRET}@s1,s2/0", "needs the master's name"),
        (f"sentinel://:{SECRET}@s1/0?master=", "needs the master's name"),
        (f"sentinel://:{SECRET}@/0?master=m", "a sentinel has no host"),
        (f"sentinel://:{SECRET}@s1,,s2/0?master=m", "a sentinel has no host"),
        (f"sentinel://:a@s1/0;sentinel://:{SECRET}@s2/0?master=m", "its parts name different users or passwords"),
        ("sentinel://s1/0;sentinel://s2/1?master=m", "its parts name different databases"),
        (f"redis://:{SECRET}@one,two", "redis:// names one server; sentinels know several"),
        (f"redis://:{SECRET}@cache:70000", "a port must be a number from 1 to 65535"),
        (f"redis://:{SECRET}@cache:0", "a port must be a number from 1 to 65535"),
        (f"redis://:{SECRET}@cache:port", "a port must be a number from 1 to 65535"),
        (f"redis://cache:{SECRET}", "a port must be"),
        (f"redis://:{SECRET}@cache/first", "the database must be a number"),
        (f"redis://{SECRET}@cache", "a user without a password"),
        (f"redis://:{SECRET}@cache?master=m", "unknown option; redis:// knows db, protocol"),
        (f"redis://cache?{SECRET}={SECRET}", "unknown option"),
        (f"redis://:{SECRET}@cache?ssl_ca_certs=/ca.pem", "begin the URL with rediss://"),
        ("sentinel://s1?master=m&ssl_cert_reqs=none", "add ssl=true"),
        ("sentinel://s1?master=m&ssl=perhaps", "ssl must be true or false"),
        (f"rediss://:{SECRET}@cache?ssl_ca_certs=/nowhere.pem", "ssl_ca_certs: the file does not exist"),
        (f"rediss://:{SECRET}@cache?ssl_cert_reqs=maybe", "ssl_cert_reqs must be required, optional or none"),
        (f"redis://:{SECRET}@cache?protocol=4", "protocol must be 2 or 3"),
        (f"unix://:{SECRET}@socket", "three slashes: unix:///path/redis.sock"),
        # Passwords that were not escaped: the text in place of a port or a path is part of them.
        (f"redis://:a/{SECRET}@cache/0", "write / as %2F"),
        (f"redis://:a#{SECRET}@cache/0", "# as %23"),
        (f"redis://:a?{SECRET}@cache/0", "? as %3F"),
        (f"sentinel://:a;{SECRET}@s1/0?master=m", "; as %3B"),
        (f"redis://[{SECRET}]", "a port must be"),
    ],
)
def test_the_message_about_a_bad_url_hides_the_password(
    url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RedisUrlError) as caught:
        RedisUrl.parse(url)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)
    # Nor does pydantic's error show it, which a worker prints if it does not start.
    monkeypatch.setenv("PENSTOCK_REDIS_URL", url)
    with pytest.raises(ValueError, match="redis_url") as refused:
        Settings()
    assert SECRET not in f"{refused.value!s} {refused.value!r}"


def test_no_password_is_shown() -> None:
    url = RedisUrl.parse(SENTINELS.replace("p%2Fw", SECRET).replace("x%26y", SECRET))
    assert (url.password, url.sentinel_password) == (SECRET, SECRET)
    assert SECRET not in f"{url!r} {url} {url.shown}"
    assert pickle.loads(pickle.dumps(url)) == url
