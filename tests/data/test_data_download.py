"""Downloads over a real connection that is cut, resumed, wrong or absent."""

import hashlib
import socket

import numpy as np
import pytest

from dosimeter.data.download import download
from dosimeter.errors import DataError, OutputError

CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()
OTHER = bytes(300_000)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "folder" / "file.bin"


def left_in(place):
    return [path.name for path in place.parent.iterdir()] if place.parent.exists() else []


def test_a_file_arrives_and_is_not_fetched_again(serve, place):
    server = serve({"file.bin": CONTENT})
    for _ in range(2):
        download(f"{server.base}/file.bin?download=1", place, MD5, title="set")
        assert place.read_bytes() == CONTENT
    assert server.seen == [("/file.bin?download=1", None)]
    assert left_in(place) == ["file.bin"]


def test_a_file_that_is_there_but_wrong_is_replaced(serve, place):
    place.parent.mkdir()
    place.write_bytes(OTHER)
    download(f"{serve({'file.bin': CONTENT}).base}/file.bin", place, MD5, title="set")
    assert place.read_bytes() == CONTENT


def test_a_cut_connection_is_resumed_where_it_broke(serve, place):
    server = serve({"file.bin": CONTENT}, cuts=6)  # more cuts than tries in a row, but each brings something
    download(f"{server.base}/file.bin", place, MD5, title="set")
    assert place.read_bytes() == CONTENT
    assert [wanted for _, wanted in server.seen[:3]] == [None, "bytes=150000-", "bytes=225000-"]
    assert len(server.seen) == 7


def test_a_server_that_ignores_ranges_is_read_from_the_start(serve, place):
    server = serve({"file.bin": CONTENT}, cuts=1, ranges=False)
    download(f"{server.base}/file.bin", place, MD5, title="set")
    assert place.read_bytes() == CONTENT
    assert server.seen == [("/file.bin", None), ("/file.bin", "bytes=150000-")]


def test_giving_up_keeps_the_part_and_a_later_call_goes_on(serve, place):
    server = serve({"file.bin": CONTENT}, cuts=100, ranges=False)
    with pytest.raises(DataError, match="cut after 150000 of 300000 bytes"):
        download(f"{server.base}/file.bin", place, MD5, title="set")
    assert len(server.seen) == 4  # the first and three more that brought nothing new
    assert left_in(place) == ["file.bin.part"]
    server.cuts, server.ranges = 0, True
    download(f"{server.base}/file.bin", place, MD5, title="set")
    assert server.seen[-1] == ("/file.bin", "bytes=150000-")
    assert place.read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(serve, place):
    server = serve({"file.bin": OTHER})
    with pytest.raises(DataError, match=f"expected {MD5}") as caught:
        download(f"{server.base}/file.bin", place, MD5, title="set")
    assert "set.npz" in str(caught.value)
    assert left_in(place) == []


@pytest.mark.parametrize("length", [1000, 300_000, 400_000])
def test_a_part_of_another_file_is_thrown_away(serve, place, length):
    place.parent.mkdir()
    place.with_name("file.bin.part").write_bytes(bytes(length))
    download(f"{serve({'file.bin': CONTENT}).base}/file.bin", place, MD5, title="set")
    assert place.read_bytes() == CONTENT
    assert left_in(place) == ["file.bin"]


def test_a_part_that_is_whole_is_only_renamed(serve, place):
    place.parent.mkdir()
    place.with_name("file.bin.part").write_bytes(CONTENT)
    server = serve({"file.bin": CONTENT})
    download(f"{server.base}/file.bin", place, MD5, title="set")
    assert place.read_bytes() == CONTENT
    assert server.seen == [("/file.bin", "bytes=300000-")]


def test_passing_errors_are_tried_again_and_final_ones_are_not(serve, place):
    server = serve({"file.bin": CONTENT}, errors=(503, 429))
    download(f"{server.base}/file.bin", place, MD5, title="set")
    assert len(server.seen) == 3
    with pytest.raises(DataError, match="HTTP Error 404"):
        download(f"{server.base}/no.bin", place.with_name("no.bin"), MD5, title="set")
    assert len(server.seen) == 4


def test_without_a_network_the_message_says_what_to_do(place):
    with socket.socket() as taken:  # bound but not listening, so that connecting is refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/file.bin"
        with pytest.raises(DataError, match=r"put mnist\.npz in a folder and set DOSIMETER_DATA") as caught:
            download(url, place, MD5, title="mnist")
    assert "refused" in str(caught.value)
    assert left_in(place) == []


@pytest.mark.parametrize("scheme", ["file", "ftp", "data", ""])
def test_only_http_is_spoken(place, tmp_path, scheme):
    (tmp_path / "file.bin").write_bytes(CONTENT)
    with pytest.raises(DataError, match="http:// or https://"):
        download(f"{scheme}://{tmp_path}/file.bin", place, MD5, title="set")
    assert not place.exists()


def test_a_place_that_cannot_be_written_is_named(serve, tmp_path):
    (tmp_path / "folder").write_text("a file where a folder should be")
    with pytest.raises(OutputError, match="Cannot write"):
        download(f"{serve({'file.bin': CONTENT}).base}/file.bin", tmp_path / "folder" / "file.bin", MD5, title="set")
