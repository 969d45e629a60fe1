"""Which requests of browsers pass: by Origin and Sec-Fetch-Site, and by Host."""

import pytest

from magnetar.bookkeeper.origin_check import OriginCheck, host_names, is_loopback, names_to_answer

_OTHER = {"Origin": "https://evil.test", "Host": "broker:8443"}
_LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def check(*origins: str, hosts: tuple[str, ...] | None = None) -> OriginCheck:
    return OriginCheck(hosts=hosts, hosts_setting="h", origins=origins, origins_setting="o")


def status(
    sites: OriginCheck, *headers: tuple[str, str], method: str = "POST", is_page: bool = True
) -> int:
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers]
    refusal = sites.refusal(method, pairs, is_page=is_page)
    return 200 if refusal is None else int(refusal[0])


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "?"])
@pytest.mark.parametrize("is_page", [True, False])
@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),  # no browser
        ({"Host": "broker:8443"}, True),
        (_OTHER, False),
        ({"Origin": "null", "Host": "broker:8443"}, False),
        ({"Origin": "https://broker:8443", "Host": "Broker:8443"}, True),
        ({"Origin": "https://broker:8443.evil.test", "Host": "broker:8443"}, False),
        ({"Origin": "https://evil.test@broker:8443", "Host": "broker:8443"}, False),
        ({"Origin": "https://broker:8443"}, False),
        ({"Origin": "", "Host": ""}, False),
        ({"Origin": "https://friend.test", "Host": "broker:8443"}, True),
        ({**_OTHER, "Sec-Fetch-Site": "cross-site"}, False),
        ({"Host": "broker:8443", "Sec-Fetch-Site": "cross-site"}, False),
        ({"Host": "broker:8443", "Sec-Fetch-Site": "same-site"}, False),
        ({"Host": "broker:8443", "Sec-Fetch-Site": "later-invention"}, False),
        ({**_OTHER, "Sec-Fetch-Site": "same-origin"}, True),  # behind a proxy with another name
        ({"Host": "broker:8443", "Sec-Fetch-Site": "none"}, True),
    ],
)
def test_pages_of_other_sites_are_refused(
    method: str, is_page: bool, headers: dict[str, str], passes: bool
) -> None:
    found = status(check("https://friend.test"), *headers.items(), method=method, is_page=is_page)
    assert found == (200 if passes else 403)


@pytest.mark.parametrize("name", ["Origin", "Sec-Fetch-Site"])
def test_of_two_headers_the_worse_one_counts(name: str) -> None:
    good, bad = {"Origin": ("http://a", "http://b"), "Sec-Fetch-Site": ("none", "cross-site")}[name]
    for pair in ((good, bad), (bad, good)):
        assert status(check("http://a"), *((name, value) for value in pair)) == 403


def test_a_link_may_lead_to_a_page_and_nowhere_else() -> None:
    def asked(method: str = "GET", is_page: bool = True, **other: str) -> int:
        headers = _LINK | {name.replace("_", "-"): value for name, value in other.items()}
        return status(check(), *headers.items(), method=method, is_page=is_page)

    assert asked() == asked("HEAD") == 200
    assert asked("POST") == 403  # a form
    assert asked(is_page=False) == 403  # it would take messages
    assert asked(Sec_Fetch_Dest="iframe") == 403
    assert asked(Sec_Fetch_Mode="no-cors") == 403
    assert asked(Origin="https://evil.test") == 403


def test_a_star_lets_all_sites_in_but_tells_who_they_are() -> None:
    sites = check("*", "https://friend.test")
    for headers in (_OTHER, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert status(sites, *headers.items()) == 200
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        assert sites.is_foreign("POST", pairs)
    assert not sites.is_foreign("POST", [(b"origin", b"https://friend.test")])
    assert not sites.is_foreign("POST", [])


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        *(
            (each, True)
            for each in ("localhost", "LOCALHOST:8080", "localhost.:8080", "localhost:1")
        ),
        *((each, True) for each in ("127.0.0.1:8080", "[::1]:8080", "127.9.9.9", "10.1.2.3:8080")),
        *((each, True) for each in ("broker-1.mq.svc:80", "Broker-1.mq.svc")),
        *((each, True) for each in ("a.example.com", "a.b.example.com:443")),
        *((each, False) for each in ("evil.example", "evil.example:8080", "", " ", ":8080")),
        *(
            (each, False)
            for each in ("example.com", "xexample.com", "broker-1.mq.svc.evil.example")
        ),
        *(
            (each, False)
            for each in ("localhost.evil.example", "127.0.0.1.evil.example", "[", "[x]")
        ),
        *(
            (each, False)
            for each in ("localhost@evil.example", "evil.example/localhost", "*.example")
        ),
        ("1.2.3", False),
    ],
)
def test_known_hosts(host: str, passes: bool) -> None:
    sites = check(hosts=("broker-1.mq.svc", "*.example.com"))
    for _ in range(2):  # also from memory
        assert status(sites, ("Host", host), method="GET") == (200 if passes else 421)
        assert status(sites, ("Host", "localhost"), ("Host", host)) == (200 if passes else 421)


def test_hosts_that_are_not_asked_for() -> None:
    assert status(check(hosts=()), method="GET") == 200  # HTTP/1.0, so no browser
    for hosts in (None, ("a", "*")):
        assert status(check(hosts=hosts), ("Host", "evil.example")) == 200


def test_what_is_remembered_of_hosts_is_bounded() -> None:
    sites = check(hosts=("*.example.com",))
    for number in range(2000):
        assert status(sites, ("Host", f"n{number}.example.com")) == 200
    assert len(sites._known) <= 256


def test_the_setting() -> None:
    assert host_names(" A.example ,, *.B.example,*,::1,10.0.0.1") == (
        *("a.example", "*.b.example", "*", "::1"),
        "10.0.0.1",
    )
    for wrong in ("a:80", "http://a", "*x", "a.*", "a b", "*.*.a"):
        with pytest.raises(ValueError, match="is no host name"):
            host_names(wrong)


@pytest.mark.parametrize(
    ("bind", "authenticated", "allowed", "asked"),
    [
        ("127.0.0.1", False, "", True),
        ("::1", False, "", True),
        ("localhost", False, "", True),
        ("127.0.0.1", True, "", False),
        ("0.0.0.0", False, "", False),
        ("10.0.0.1", False, "", False),
        ("0.0.0.0", False, "a", True),
        ("0.0.0.0", True, "a", True),
    ],
)
def test_when_hosts_are_asked_for(
    bind: str, authenticated: bool, allowed: str, asked: bool
) -> None:
    names = names_to_answer(allowed, bind_address=bind, own=["me"], is_authenticated=authenticated)
    assert (names is not None) == asked
    if names is not None:
        assert {"me", bind, *filter(None, [allowed])} == set(names)


def test_loopback() -> None:
    assert all(
        is_loopback(each) for each in ("127.0.0.1", "127.1.2.3", "::1", "[::1]", "LOCALHOST")
    )
    assert not any(is_loopback(each) for each in ("", "0.0.0.0", "::", "10.0.0.1", "broker"))
