"""The guard: what a regrade refuses, proved against listeners that count what arrives."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
import os
import pickle
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests

from osmosis_ai.rollout.context import GradingScope, PolicyCallRefused, RolloutContext
from osmosis_store.database import Database
from osmosis_store.engine import parse_url
from osmosis_store.errors import NetworkRefused, StoreUnreachable
from osmosis_store.network_guard import ContextThreadPool, NetworkGuard, Watch
from tests.osmosis_store.programs import run_program

CURL = (
    ["curl", "--silent"]
    if shutil.which("curl")
    else [sys.executable, "-c", "import sys, urllib.request as u; u.urlopen(sys.argv[1])"]
)
ANSWER = (
    b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\nx-should-retry: false\r\nconnection: close\r\n\r\n{}"
)


class Listener:
    """A TCP and a UDP port of one number on loopback, and how much came to them."""

    def __init__(self) -> None:
        self.arrived = 0
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.port = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", self.port))
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._accept, self._receive)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def count(self) -> int:
        """Return what came, after everything that was sent before has been seen."""
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(b"LAST")
            while last.recv(100):
                pass
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.settimeout(10)
            last.sendto(b"LAST", ("127.0.0.1", self.port))
            last.recvfrom(100)
        return self.arrived

    def _accept(self) -> None:
        while True:
            connection, _ = self._tcp.accept()
            with connection, contextlib.suppress(OSError):
                received = connection.recv(65536)
                if received == b"LAST":
                    continue
                self.arrived += 1  # a connection counts, whether or not anything is sent
                connection.sendall(ANSWER)

    def _receive(self) -> None:
        while True:
            received, sender = self._udp.recvfrom(65536)
            if received == b"LAST":
                self._udp.sendto(b"", sender)
            else:
                self.arrived += 1


@pytest.fixture(scope="session")
def running_listener() -> Listener:
    return Listener()


@pytest.fixture
def listener(running_listener: Listener) -> Listener:
    running_listener.arrived = 0
    return running_listener


def call_socket(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"hello")
        connection.recv(100)


async def ask_async_openai(listener: Listener) -> None:
    async with openai.AsyncOpenAI(api_key="none", base_url=listener.url) as client:
        await client.chat.completions.create(model="judge", messages=[])


async def ask_openai(listener: Listener) -> None:
    with openai.OpenAI(api_key="none", base_url=listener.url) as client:
        client.chat.completions.create(model="judge", messages=[])


async def connect_in_a_thread(listener: Listener) -> None:
    thread = threading.Thread(target=quietly, args=(call_socket, listener.port))
    thread.start()
    thread.join()


async def connect_in_a_thread_of_a_thread(listener: Listener) -> None:
    def outer() -> None:
        inner = threading.Thread(target=quietly, args=(call_socket, listener.port))
        inner.start()
        inner.join()

    thread = threading.Thread(target=outer)
    thread.start()
    thread.join()


async def connect_by_to_thread(listener: Listener) -> None:
    await asyncio.to_thread(call_socket, listener.port)


async def connect_in_a_task(listener: Listener) -> None:
    async def connect() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"hello")
        writer.close()
        await writer.wait_closed()

    await asyncio.create_task(connect())


async def connect_in_the_executor(listener: Listener) -> None:
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, call_socket, listener.port)


async def connect_in_a_pool(listener: Listener) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(call_socket, listener.port).result()


async def get_by_httpx_async(listener: Listener) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get(listener.url)


async def get_by_name(listener: Listener) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get(f"http://localhost:{listener.port}/")


async def get_by_requests(listener: Listener) -> None:
    requests.get(listener.url, timeout=10)  # noqa: ASYNC210 # graders do such things


async def get_by_aiohttp(listener: Listener) -> None:
    async with aiohttp.ClientSession() as client, client.get(listener.url):
        pass


async def send_a_datagram(listener: Listener) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"hello", ("127.0.0.1", listener.port))


async def send_a_message(listener: Listener) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendmsg([b"hello"], [], 0, ("127.0.0.1", listener.port))


async def start_a_program(listener: Listener) -> None:
    subprocess.run([*CURL, listener.url], check=True, capture_output=True)  # noqa: ASYNC221 # as above


async def start_a_program_from_asyncio(listener: Listener) -> None:
    process = await asyncio.create_subprocess_exec(
        *CURL, listener.url, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    await process.wait()


async def run_a_shell(listener: Listener) -> None:
    os.system(f"{shlex.join([*CURL, listener.url])} > {os.devnull} 2>&1")  # noqa: ASYNC221 # as above


async def replace_a_forked_child(listener: Listener) -> None:
    os.spawnvp(os.P_WAIT, CURL[0], [*CURL, listener.url])  # noqa: ASYNC221 # as above


async def connect_in_a_forked_child(listener: Listener) -> None:
    child = multiprocessing.get_context("fork").Process(
        target=quietly, args=(call_socket, listener.port)
    )
    child.start()
    child.join()


async def connect_in_a_spawned_child(listener: Listener) -> None:
    child = multiprocessing.get_context("spawn").Process(
        target=quietly, args=(call_socket, listener.port)
    )
    child.start()
    child.join()


def quietly(function: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(OSError):
        function(*args)


Attempt = Callable[[Listener], Awaitable[None]]

ATTRIBUTED: list[Attempt] = [
    ask_async_openai,
    ask_openai,
    connect_in_a_thread,
    connect_in_a_thread_of_a_thread,
    connect_by_to_thread,
    connect_in_a_task,
    get_by_httpx_async,
    get_by_requests,
    get_by_aiohttp,
    send_a_datagram,
    send_a_message,
    start_a_program,
    start_a_program_from_asyncio,
    run_a_shell,
    replace_a_forked_child,
    connect_in_a_forked_child,
    connect_in_a_spawned_child,
]
SHARED: list[Attempt] = [connect_in_the_executor, connect_in_a_pool, get_by_name]
FORKS_BESIDE_THREADS = "ignore:.*multi-threaded.*fork:DeprecationWarning"


def ids(attempt: Attempt) -> str:
    return attempt.__name__


async def grade(guard: NetworkGuard, attempt: Attempt, listener: Listener) -> Watch:
    """Do what a grader does that swallows every error."""
    with guard.active(), guard.watching() as watch, contextlib.suppress(Exception):
        await attempt(listener)
    return watch


@pytest.mark.filterwarnings(FORKS_BESIDE_THREADS)
@pytest.mark.parametrize("attempt", ATTRIBUTED, ids=ids)
async def test_nothing_arrives_and_the_grading_is_told_though_it_swallows_the_error(
    attempt: Attempt, listener: Listener
) -> None:
    guard = NetworkGuard()
    watch = await grade(guard, attempt, listener)

    assert listener.count() == 0
    assert guard.refused >= 1
    assert (guard.allowed, guard.unattributed) == (0, 0)
    assert watch.refused
    assert watch.error.startswith("the grader tried to ")
    assert not watch.overlapped_unattributed


@pytest.mark.parametrize("attempt", SHARED, ids=ids)
async def test_what_a_shared_thread_does_arrives_nowhere_and_every_open_grading_is_told(
    attempt: Attempt, listener: Listener
) -> None:
    guard = NetworkGuard()
    with guard.active(), guard.watching() as first:
        second = await watched(guard, attempt, listener)

    assert listener.count() == 0
    assert guard.refused == guard.unattributed >= 1
    for watch in (first, second):
        assert not watch.refused
        assert watch.overlapped_unattributed
        assert "it may have been this one" in watch.error


@pytest.mark.filterwarnings(FORKS_BESIDE_THREADS)
@pytest.mark.parametrize("attempt", [*ATTRIBUTED, *SHARED], ids=ids)
async def test_all_of_it_arrives_when_it_is_allowed(attempt: Attempt, listener: Listener) -> None:
    guard = NetworkGuard(allow=True)
    watch = await grade(guard, attempt, listener)

    assert listener.count() >= 1
    assert guard.allowed >= 1
    assert (guard.refused, guard.unattributed, watch.error) == (0, 0, None)


@pytest.mark.filterwarnings(FORKS_BESIDE_THREADS)
@pytest.mark.parametrize("attempt", ATTRIBUTED, ids=ids)
async def test_without_the_whole_process_a_watched_grading_is_refused_all_the_same(
    attempt: Attempt, listener: Listener
) -> None:
    guard = NetworkGuard(whole_process=False)
    watch = await grade(guard, attempt, listener)

    assert listener.count() == 0
    assert watch.refused


@pytest.mark.parametrize("attempt", [connect_in_the_executor, get_by_name], ids=ids)
async def test_an_executor_with_contexts_tells_whose_call_it_was(
    attempt: Attempt, listener: Listener
) -> None:
    asyncio.get_running_loop().set_default_executor(ContextThreadPool(2))
    guard = NetworkGuard()
    with guard.active(), guard.watching() as other:
        watch = await asyncio.create_task(watched(guard, attempt, listener))

    assert listener.count() == 0
    assert watch.refused
    assert (guard.unattributed, other.error) == (0, None)


async def watched(guard: NetworkGuard, attempt: Attempt, listener: Listener) -> Watch:
    with guard.watching() as watch, contextlib.suppress(OSError, httpx.HTTPError):
        await attempt(listener)
    return watch


async def test_gradings_side_by_side_are_told_of_their_own_only(listener: Listener) -> None:
    async def behave(listener: Listener) -> None:
        await asyncio.sleep(0.05)

    guard = NetworkGuard()
    with guard.active():
        watches = await asyncio.gather(
            watched(guard, connect_in_a_task, listener),
            watched(guard, behave, listener),
            watched(guard, connect_by_to_thread, listener),
        )

    assert [bool(watch.error) for watch in watches] == [True, False, True]


async def test_the_rollout_model_sends_nothing_even_where_the_network_is_allowed(
    listener: Listener,
) -> None:
    from osmosis_ai.rollout.integrations.agents.openai_agents import OsmosisLitellmModel

    context = RolloutContext(chat_completions_url=listener.url, rollout_id="r")
    with context:
        model = OsmosisLitellmModel()
    guard, scope = NetworkGuard(allow=True), GradingScope()
    with guard.active(), guard.watching(), scope.active(), pytest.raises(PolicyCallRefused):
        await model.get_response(None, "hi", None, [], None, [], None)
    await model.close()

    assert listener.count() == 0
    assert (scope.policy_calls_refused, guard.allowed) == (1, 0)


def test_other_threads_are_refused_only_when_the_whole_process_is_guarded(
    listener: Listener,
) -> None:
    unwatched = NetworkGuard(whole_process=False)
    with unwatched.active():
        call_socket(listener.port)
    assert listener.count() == 1

    whole = NetworkGuard()
    with whole.active(), pytest.raises(NetworkRefused):
        call_socket(listener.port)
    assert listener.count() == 1
    assert (unwatched.refused, whole.refused, whole.unattributed) == (0, 1, 1)


def test_what_a_grading_left_running_counts_for_nobody_and_makes_the_open_ones_doubtful(
    listener: Listener,
) -> None:
    go = threading.Event()

    def wait() -> None:
        go.wait(10)
        quietly(call_socket, listener.port)

    guard = NetworkGuard()
    with guard.active():
        with guard.watching() as first:
            thread = threading.Thread(target=wait)
            thread.start()
        with guard.watching() as second:
            go.set()
            thread.join()

    assert listener.count() == 0
    assert (first.error, guard.unattributed) == (None, 1)
    assert second.overlapped_unattributed


def test_when_it_is_left_everything_works_as_before(listener: Listener) -> None:
    with NetworkGuard().active():
        pass
    call_socket(listener.port)

    assert listener.count() == 1


def test_local_sockets_are_refused_too(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        guard = NetworkGuard()
        with guard.active(), pytest.raises(NetworkRefused, match=r"connect to .*/s; refused"):
            client.connect(str(tmp_path / "s"))


def test_what_stays_in_the_process_works() -> None:
    async def use_asyncio() -> int:
        return await asyncio.to_thread(sum, [1, 2])

    guard = NetworkGuard()
    with guard.active(), guard.watching() as watch:
        assert asyncio.run(use_asyncio()) == 3
        one, other = socket.socketpair()
        one.sendmsg([b"x"])
        assert other.recv(1) == b"x"
        one.close()
        other.close()
        assert socket.getaddrinfo("127.0.0.1", 80)
        assert socket.getaddrinfo("::1", 80)
        socket.gethostname()

    assert (guard.refused, watch.error) == (0, None)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda: socket.getaddrinfo("policy.invalid", 443),
        lambda: socket.gethostbyname("policy.invalid"),
        lambda: socket.gethostbyaddr("192.0.2.1"),
        lambda: socket.getnameinfo(("192.0.2.1", 80), 0),
    ],
)
def test_a_name_is_not_looked_up(look_up: Callable[[], object]) -> None:
    guard = NetworkGuard()
    with guard.active(), guard.watching() as watch, pytest.raises(NetworkRefused, match="look up"):
        look_up()

    assert len(watch.refused) == 1


def test_a_lookup_that_is_allowed_is_no_connection() -> None:
    guard = NetworkGuard(allow=True)
    with guard.active():
        socket.getaddrinfo("localhost", 80)

    assert guard.allowed == 0


def test_the_caller_hears_of_the_first_refusal_at_once(listener: Listener) -> None:
    heard: list[str] = []
    guard = NetworkGuard()
    with guard.active(), guard.watching(lambda: heard.append("refused")):
        quietly(call_socket, listener.port)
        assert heard == ["refused"]
        quietly(call_socket, listener.port)

    assert heard == ["refused"]
    assert guard.refused == 2


async def test_a_client_that_tries_again_can_be_cut_short(listener: Listener) -> None:
    async def run() -> None:
        task = asyncio.current_task()
        with guard.watching(lambda: loop.call_soon_threadsafe(task.cancel)):
            await ask_async_openai(listener)

    guard, loop = NetworkGuard(), asyncio.get_running_loop()
    with guard.active(), pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run())

    assert guard.refused == 1


def test_a_guard_for_the_whole_process_is_alone() -> None:
    with NetworkGuard().active(), pytest.raises(RuntimeError, match="runs alone"):
        NetworkGuard(whole_process=False).active().__enter__()
    with NetworkGuard(whole_process=False).active():
        with NetworkGuard(whole_process=False).active():
            pass
        with pytest.raises(RuntimeError, match="runs alone"):
            NetworkGuard().active().__enter__()


def test_arguments_of_a_program_are_not_told() -> None:
    with NetworkGuard().active(), pytest.raises(NetworkRefused) as caught:
        subprocess.run(["/usr/bin/curl", "-H", "authorization: sk-secret"], check=False)

    assert str(caught.value) == (
        "the grader tried to start curl; refused, since a regrade uses no network "
        "(a judge may: --allow-network)"
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


async def test_a_store_reads_and_writes_while_the_process_is_guarded(store_url: str) -> None:
    guard = NetworkGuard()
    with guard.active(), guard.watching() as watch:
        opened = Database.open(parse_url(store_url), create=False)
        try:
            assert await opened.read(lambda tx: tx.exec_driver_sql("SELECT 1").scalar()) == 1
            await opened.write(lambda tx: tx.exec_driver_sql("DELETE FROM rollouts"))
        finally:
            opened.close()

    assert (guard.refused, watch.error) == (0, None)


def test_a_store_whose_server_has_a_name_reaches_it(listener: Listener) -> None:
    guard = NetworkGuard()
    with guard.active(), pytest.raises(StoreUnreachable):  # the listener is no PostgreSQL
        Database.open(parse_url(f"postgresql://u@localhost:{listener.port}/d"), create=False)

    assert listener.count() >= 1
    assert guard.refused == 0


def test_the_sdk_sends_no_traces_when_it_is_told_so() -> None:
    ended = run_program(
        """
        import os
        os.environ.update(OPENAI_API_KEY="none", OPENAI_AGENTS_DISABLE_TRACING="1")
        from osmosis_store.network_guard import NetworkGuard
        guard = NetworkGuard()
        with guard.active(), guard.watching() as watch:
            from agents.tracing import flush_traces, function_span, trace
            with trace("grading"), function_span("step"):
                pass
            flush_traces()
        print(guard.refused, watch.error)
        """
    )

    assert (ended.output, ended.exit_code) == ("0 None\n", 0), ended.errors


@pytest.fixture(autouse=True)
def no_guard_is_left() -> Iterator[None]:
    yield
    from osmosis_store import network_guard

    assert network_guard._active == ()
