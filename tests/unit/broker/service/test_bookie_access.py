"""Where readers find bookies, and the tokens that an embedded bookie's readers get."""

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.auth.errors import CredentialsError
from magnetar.bookkeeper.bookie.cookie import INSTANCE_ID_PATH
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_PATH, ServiceInfo
from magnetar.broker.server.embedded_bookie_server import ReaderTokens
from magnetar.broker.service.bookie_access import BookieAccess, RegisteredBookies
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import StoreUnreachableError
from magnetar.metadata.paths import encode_name
from tests.unit.managed_ledger.cluster import CONFIG, Cluster, appended, eventually

LOG, OTHER_LOG = "t/ns/persistent/mine", "t/ns/persistent/other"


# --- bookies of a cluster


async def register(store: EmbeddedMetadataStore, directory: str, info: ServiceInfo) -> None:
    await store.put(f"{directory}/{encode_name(info.bookie_id)}", info.encode())


def info(bookie_id: str, number: int) -> ServiceInfo:
    host = f"host-{number}"
    return ServiceInfo(bookie_id, "/z/1", (host, 1000 + number), rpc_address=(host, number))


async def test_addresses_are_those_of_registrations() -> None:
    store = EmbeddedMetadataStore.open(None)
    pool = BookiePool(store)
    await register(store, AVAILABLE_PATH, info("b1", 1))
    await register(store, AVAILABLE_PATH, info("b2", 2))
    await register(store, READ_ONLY_PATH, info("b3", 3))
    await register(store, AVAILABLE_PATH, ServiceInfo("in-process", "/z/1"))
    await pool.start()
    directory = RegisteredBookies(store, pool)
    wanted = ["b1", "b3", "in-process", "nobody"]
    expected = {"b1": ("host-1", 1), "b3": ("host-3", 3)}
    assert await directory.find(wanted, LOG) == BookieAccess(expected)
    # The cluster gets its name with its first bookie's cookie; from then on it is remembered.
    await store.put(INSTANCE_ID_PATH, b"cluster-1")
    assert await directory.find(wanted, LOG) == BookieAccess(expected, "cluster-1")
    await store.delete(f"{AVAILABLE_PATH}/b1")
    await eventually(lambda: not pool.is_registered("b1"))
    assert (await directory.find(wanted, LOG)).addresses == {"b3": ("host-3", 3)}
    await pool.close()
    await store.close()
    assert (await directory.find([], LOG)).instance_id == "cluster-1"


# --- tokens of the embedded bookie's readers


class Clock:
    now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def ledgers(cluster: Cluster) -> LedgerStore:
    return LedgerStore(cluster.store)


async def test_a_token_is_good_for_a_day(ledgers: LedgerStore) -> None:
    clock = Clock()
    tokens = ReaderTokens(ledgers, clock)
    authenticator, token = tokens.authenticator(), tokens.token_for(LOG)
    role = authenticator.admit(token, None).role
    assert authenticator.admit(tokens.token_for(OTHER_LOG), None).role != role
    clock.now_s += 24 * 3600 - 1
    assert authenticator.admit(token, None).role == role
    clock.now_s += 3601
    with pytest.raises(CredentialsError, match="expired"):
        authenticator.admit(token, None)
    assert authenticator.admit(tokens.token_for(LOG), None).role == role


async def test_who_asks_often_gets_the_same_token(ledgers: LedgerStore) -> None:
    clock = Clock()
    clock.now_s -= clock.now_s % 3600
    tokens = ReaderTokens(ledgers, clock)
    token = tokens.token_for(LOG)
    clock.now_s += 3599
    assert tokens.token_for(LOG) == token
    clock.now_s += 1
    assert tokens.token_for(LOG) != token


async def test_another_process_tokens_are_none_of_ours(ledgers: LedgerStore) -> None:
    authenticator = ReaderTokens(ledgers).authenticator()
    for token in (ReaderTokens(ledgers).token_for(LOG), "", "x", None):
        with pytest.raises(CredentialsError):
            authenticator.admit(token, None)


async def test_a_token_opens_the_ledgers_of_its_topic(
    cluster: Cluster, ledgers: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = cluster.factory()
    ledger_ids = []
    for name in (LOG, OTHER_LOG):
        log = await factory.open(name, CONFIG)
        cursor = await log.open_cursor("sub")
        appends = await appended(log, b"1", b"2", b"3", b"4")
        positions = [position for position, _ in appends.acked]
        cursor.ack([positions[0], positions[2]])
        await cursor.flush()
        ledger_ids += [positions[0][0], cursor.ledger_position[0]]
    mine, my_cursor, others, others_cursor = ledger_ids
    assert len(set(ledger_ids)) == 4
    tokens = ReaderTokens(ledgers)
    reader_check = tokens.reader_check_of(
        tokens.authenticator().admit(tokens.token_for(LOG), None).role
    )
    assert await reader_check(mine) == codes.OK
    for refused in (others, my_cursor, others_cursor):
        assert await reader_check(refused) == codes.UNAUTHORIZED
    assert await reader_check(987_654) == codes.NO_LEDGER

    # What was found out is remembered; what wasn't is no "no".
    async def fail(ledger_id: int) -> None:
        raise StoreUnreachableError("zk:h", "down")

    monkeypatch.setattr(ledgers, "read", fail)
    assert await reader_check(mine) == codes.OK
    assert await reader_check(others) == codes.UNAUTHORIZED
    assert await reader_check(987_654) == codes.UNAVAILABLE


async def test_only_so_many_ledgers_are_remembered(
    cluster: Cluster, ledgers: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.server.embedded_bookie_server._LEDGERS_MAX", 2)
    factory = cluster.factory()
    ledger_ids = []
    for name in ("t/ns/persistent/1", "t/ns/persistent/2", "t/ns/persistent/3"):
        log = await factory.open(name, CONFIG)
        appends = await appended(log, b"1")
        ledger_ids.append(appends.acked[0][0][0])
    tokens = ReaderTokens(ledgers)
    reader_check = tokens.reader_check_of("nobody")
    for ledger_id in ledger_ids * 2:
        assert await reader_check(ledger_id) == codes.UNAUTHORIZED
        assert len(tokens._roles) <= 2
