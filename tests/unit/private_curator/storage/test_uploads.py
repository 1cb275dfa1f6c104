from __future__ import annotations

import threading

import pytest

from dpswd.private_curator.storage import uploads
from dpswd.private_curator.storage.uploads import Kind, UploadStore
from dpswd.shared.core.errors import InvalidValue, RequestInvalid


@pytest.fixture
def store(tmp_path):
    return UploadStore(tmp_path, max_bytes=100, max_objects=3)


def test_what_was_put_is_read_again_also_by_a_new_process(store, tmp_path):
    digest = store.put(Kind.GRAPH, b"graph", client="a", field="graph")
    again = UploadStore(tmp_path, max_bytes=100, max_objects=3)
    assert again.get(Kind.GRAPH, digest, client="a") == b"graph"


def test_a_digest_alone_opens_nothing(store):
    digest = store.put(Kind.GRAPH, b"graph", client="a", field="graph")
    assert store.get(Kind.GRAPH, digest, client="b") is None
    assert store.get(Kind.WEIGHTS, digest, client="a") is None
    assert store.get(Kind.GRAPH, "../../etc/passwd", client="a") is None


def test_quotas_count_each_client_and_repeats_are_free(store):
    for _ in range(5):
        store.put(Kind.WEIGHTS, b"x" * 60, client="a", field="weights")
    with pytest.raises(RequestInvalid, match="100 bytes"):
        store.put(Kind.WEIGHTS, b"y" * 60, client="a", field="weights")
    store.put(Kind.WEIGHTS, b"y" * 60, client="b", field="weights")
    for data in (b"1", b"2"):
        store.put(Kind.WEIGHTS, data, client="a", field="weights")
    with pytest.raises(RequestInvalid, match="3 objects"):
        store.put(Kind.WEIGHTS, b"3", client="a", field="weights")


def test_a_file_that_a_crash_cut_short_counts_as_absent(store, tmp_path):
    digest = store.put(Kind.WEIGHTS, b"weights", client="a", field="weights")
    (tmp_path / "objects" / digest).write_bytes(b"weig")
    assert store.get(Kind.WEIGHTS, digest, client="a") is None
    store.put(Kind.WEIGHTS, b"weights", client="a", field="weights")
    assert store.get(Kind.WEIGHTS, digest, client="a") == b"weights"


def test_a_client_name_never_becomes_a_path(store):
    with pytest.raises(InvalidValue):
        store.put(Kind.GRAPH, b"graph", client="../evil", field="graph")


def test_nobody_waits_until_another_client_s_bytes_are_on_the_disk(store, monkeypatch):
    """Attack: all clients waited for one lock while large weights of one were written."""
    write, begun, go_on = uploads.write_private, threading.Event(), threading.Event()

    def slowly(path, data):
        if data == b"slow":
            begun.set()
            assert go_on.wait(60)
        write(path, data)

    monkeypatch.setattr(uploads, "write_private", slowly)
    slow = threading.Thread(target=store.put, args=(Kind.WEIGHTS, b"slow"), kwargs={"client": "a", "field": "weights"})
    slow.start()
    assert begun.wait(60)
    other = threading.Thread(target=store.put, args=(Kind.GRAPH, b"quick"), kwargs={"client": "b", "field": "graph"})
    other.start()
    other.join(10)
    waited = other.is_alive()
    go_on.set()
    slow.join(), other.join()
    assert not waited
