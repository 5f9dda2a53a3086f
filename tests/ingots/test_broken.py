"""Files that are no ingots, or broken ones: an error names the entry, and nothing else happens."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.runtime.ingot import packed as packed_entries
from smelt.runtime.ingot.archive import Archive, write_archive
from smelt.runtime.ingot.contents import from_bytes
from smelt.runtime.ingot.manifest import FORMAT, NAME, WEIGHTS
from smelt.runtime.ingot.texts.json_text import dumps, loads
from tests.ingots.fuzz import archive_of, entries_of, listed, read_changed, with_digests
from tests.ingots.programs import Tied


@pytest.fixture(scope="module")
def data() -> bytes:
    buffer = io.BytesIO()
    smelt.trace(Tied().eval(), (torch.tensor([[1, 2]]),)).save(buffer, targets=["avx2"])
    return buffer.getvalue()


def refused(data: bytes, names: str) -> None:
    with pytest.raises(smelt.PackageError, match=names) as found:
        smelt.load(data)
    assert found.value.code == "S0701"


class TestArchive:
    def test_each_cut_is_noticed(self, data: bytes) -> None:
        for nbytes in (0, 1, 21, 22, 100, len(data) // 2, len(data) - 1):
            refused(data[:nbytes], "archive")
        refused(data + b"\0", "archive")

    def test_each_entry_that_was_changed_is_named(self, data: bytes) -> None:
        archive = Archive(memoryview(data))
        for name, entry in archive.entries.items():
            for at in (0, entry.nbytes // 2, entry.nbytes - 1):
                flipped = bytearray(data)
                flipped[entry.start + at] ^= 4
                refused(bytes(flipped), name)

    @pytest.mark.parametrize("name", ["../x", "/etc/x", "a//b", "a/../b", ".", "a\\b", "a:b", "", "x" * 201, "ä"])
    def test_names_that_lead_elsewhere_are_not_written(self, name: str) -> None:
        with pytest.raises(smelt.PackageError, match="name"):
            write_archive(io.BytesIO(), [(name, [b""])])

    def test_names_that_lead_elsewhere_are_not_read(self, data: bytes) -> None:
        refused(data.replace(b"code/x86_64.o", b"../../x86_4.o"), "name")

    def test_names_that_stand_twice(self) -> None:
        file = io.BytesIO()
        write_archive(file, [("a", [b"1"]), ("a", [b"1"])])
        refused(file.getvalue(), "two entries")

    def test_entries_that_overlap(self) -> None:
        file = io.BytesIO()
        write_archive(file, [("a", [b"1" * 64]), ("b", [b"2" * 64])])
        found = file.getvalue()
        # The directory's second entry is at the first one's position.
        at = found.rindex(b"PK\x01\x02")
        refused(found[: at + 42] + struct.pack("<I", 0) + found[at + 46 :], "begin where")

    def test_a_size_that_is_not_there(self, data: bytes) -> None:
        at = data.index(b"PK\x01\x02")
        for value in (0xFFFFFFFE, 0xFFFFFFFF):
            refused(data[: at + 20] + struct.pack("<II", value, value) + data[at + 28 :], NAME)

    def test_entries_beyond_four_gigabytes(self, tmp_path: Path) -> None:
        """Of a file with a hole: nothing of it is in memory, or on the disk."""

        class Hole(bytes):
            def __len__(self) -> int:
                return 5 << 30

        class Sparse(io.FileIO):
            def write(self, piece: Any) -> int:
                if isinstance(piece, Hole):
                    return self.seek(len(piece), io.SEEK_CUR)
                return super().write(piece)

        path = tmp_path / "large"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("zlib.crc32", lambda piece, crc=0: 0)
            with Sparse(path, "wb") as file:
                write_archive(file, [("large", [Hole()]), ("after", [b"x" * 10])])
        import mmap
        import zipfile

        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            archive = Archive(view)
            assert archive.entries["large"].nbytes == 5 << 30
            assert bytes(archive.content("after", check=False)) == b"x" * 10
            assert [info.file_size for info in zipfile.ZipFile(path).infolist()] == [5 << 30, 10]
            del archive
            view.release()


class TestManifest:
    def changed(self, data: bytes, **new: Any) -> bytes:
        entries = entries_of(data)
        manifest = json.loads(entries[NAME])
        manifest |= {key: value for key, value in new.items() if key not in manifest["program"]}
        manifest["program"] |= {key: value for key, value in new.items() if key in manifest["program"]}
        return archive_of(entries | {NAME: json.dumps(manifest, separators=(",", ":")).encode()})

    def test_a_later_format(self, data: bytes) -> None:
        refused(self.changed(data, format=FORMAT + 1, more="keys"), f"format has version {FORMAT + 1}")

    def test_an_entry_more_or_less(self, data: bytes) -> None:
        entries = entries_of(data)
        refused(archive_of(entries | {"more": b""}), "more")
        refused(archive_of({n: c for n, c in entries.items() if n != "graphs/forward.txt"}), "graphs/forward.txt")

    @pytest.mark.parametrize(
        "text",
        [
            b"[" * 100_000,
            b'{"format":1,"format":1}',
            b'{"format":' + b"9" * 5000 + b"}",
            b'{"format":NaN}',
            b"\xff",
            b"",
        ],
        ids=["deep", "twice", "long", "nan", "bytes", "empty"],
    )
    def test_text_that_is_no_manifest(self, data: bytes, text: bytes) -> None:
        refused(archive_of(entries_of(data) | {NAME: text}), NAME)

    def test_a_tensor_beyond_its_memory(self, data: bytes) -> None:
        state = json.loads(entries_of(data)[NAME])["program"]["state"]
        state[0][2][3][0] += 1
        refused(self.changed(data, state=state), WEIGHTS)
        state[0][2][3][0] = 1 << 45
        refused(self.changed(data, state=state), "manifest|weights")

    @pytest.mark.parametrize("path", ["forward", "save.x", "__class__", "_parameters", "state"])
    def test_names_of_state_change_nothing_else(self, data: bytes, path: str) -> None:
        state = json.loads(entries_of(data)[NAME])["program"]["state"]
        state[0][1] = path
        loaded = smelt.load(self.changed(data, state=state))
        assert path in loaded.state_dict() and type(loaded) is smelt.LoadedProgram
        assert callable(loaded.save) and callable(loaded.forward) and loaded.training is False
        for other in ("a..b", "training"):
            state[0][1] = other
            refused(self.changed(data, state=state), "path of a parameter")


class TestPackedEntries:
    TEXT = b"graph f(" + b"%x: f32[2], " * 400

    def file(self, data: bytes, content: bytes, unpacked: object, name: str = "graphs/forward.txt") -> bytes:
        """The file, with an entry that is there as these bytes, and said to have so many unpacked."""
        entries = entries_of(data)
        manifest = json.loads(entries[NAME])
        manifest["entries"][name] = [*listed(content)[:2], unpacked]
        entries = {**entries, NAME: dumps(manifest), f"{name}.gz": content}
        del entries[name]
        return archive_of(entries)

    def test_the_writer_packs_text_and_code_and_leaves_weights_and_extra_files(self, data: bytes) -> None:
        buffer = io.BytesIO()
        smelt.load(data).save(buffer, extra_files={"note.txt": b"a" * 1000})
        names = Archive(memoryview(buffer.getvalue())).entries.keys()
        assert {NAME, "program.json.gz", "graphs/forward.txt.gz", "code/avx2/kernels.bin.gz", WEIGHTS} < names
        assert {name for name in names if not name.endswith(".gz")} == {NAME, WEIGHTS, "extra/note.txt"}
        assert (
            gzip.decompress(zipfile.ZipFile(buffer).read("graphs/forward.txt.gz")) == smelt.load(data).text().encode()
        )

    def test_what_it_holds_is_as_large_as_the_manifest_says(self, data: bytes) -> None:
        content = gzip.compress(self.TEXT)
        right = len(self.TEXT)
        assert smelt.load(self.file(data, content, right)).text() == self.TEXT.decode()
        for changed, unpacked in (
            (content, right - 1), (content, right + 1), (content, 0), (content[:-1], right), (content[:-9], right),
            (content[:20], right), (content + b"x", right), (content + content, right), (b"", right), (b"", 0),
            (self.TEXT, right), (content[:-8] + bytes(8), right),
        ):  # fmt: skip
            with pytest.raises(smelt.PackageError, match=r"graphs/forward\.txt"):
                smelt.load(self.file(data, changed, unpacked)).text()

    @pytest.mark.parametrize("name", ["graphs/forward.txt", "code/avx2/forward.json"])
    def test_one_that_would_take_much_more_memory_than_the_file(self, data: bytes, name: str) -> None:
        """Nothing is unpacked of one that is said to be large, and of one that is large no more than is said."""
        bomb = gzip.compress(bytes(1 << 27))
        tracemalloc.start()
        for unpacked in (1 << 30, 1 << 62, packed_entries.LIMIT + 1, 100_000):
            broken_file = self.file(data, bomb, unpacked, name)
            with pytest.raises(smelt.PackageError, match=name.replace(".", r"\.")):
                from_bytes(broken_file).entry(name)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 32 << 20
        assert packed_entries.packed(bytes(1 << 20)) is None  # the writer makes none that a reader refuses

    def test_weights_that_are_packed_and_entries_that_stand_twice(self, data: bytes) -> None:
        weights = entries_of(data)[WEIGHTS]
        refused(self.file(data, gzip.compress(weights), len(weights), WEIGHTS), "weights that are packed")
        entries = entries_of(data)
        manifest = json.loads(entries[NAME])
        manifest["entries"]["a.gz"] = listed(b"1")
        manifest["entries"]["a"] = [*listed(b"1")[:2], 1]
        refused(archive_of({**entries, NAME: dumps(manifest), "a.gz": b"1"}), "an entry twice")

    def test_another_zlib_saves_the_same_bytes_again(self, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        class Other:
            def __getattr__(self, name: str) -> Any:
                return getattr(zlib, name)

            def compressobj(self, level: int, *args: Any) -> Any:
                return zlib.compressobj(1, *args)

        monkeypatch.setattr(packed_entries, "zlib", Other())
        again, other = io.BytesIO(), io.BytesIO()
        smelt.load(data).save(again)
        assert again.getvalue() == data
        with torch.no_grad():
            smelt.trace(Tied().eval(), (torch.tensor([[1, 2]]),)).save(other, targets=[])
        smelt.load(other.getvalue()).save(again := io.BytesIO())
        assert again.getvalue() == other.getvalue()


class TestGraph:
    @pytest.mark.parametrize(
        "text",
        [b"graph f(" + b"[" * 20_000, b"graph f() { return " + b"9" * 5000 + b" }", b"\xff", b"", b'graph "\\u" () {}'],
        ids=["deep", "digits", "bytes", "empty", "string"],
    )
    def test_text_that_does_not_parse(self, data: bytes, text: bytes) -> None:
        loaded = smelt.load(with_digests(entries_of(data) | {"graphs/forward.txt": text}), allow_native=False)
        with pytest.raises(smelt.PackageError, match="ingot"):
            _ = loaded.graph

    def test_an_operator_that_there_is_not(self, data: bytes) -> None:
        entries = entries_of(data)
        text = entries["graphs/forward.txt"].replace(b"aten.layer_norm", b"aten.no_such_norm")
        loaded = smelt.load(with_digests(entries | {"graphs/forward.txt": text}), allow_native=False)
        with (
            torch.no_grad(),
            pytest.warns(smelt.SmeltWarning, match="no_such_norm"),
            pytest.raises(smelt.SmeltError, match="no_such_norm"),
        ):
            loaded(torch.tensor([[1, 2]]))


class TestChangedAtRandom:
    def test_each_layer(self) -> None:
        found = read_changed(400, seed=1)
        assert all(count > 10 for count in found.values())

    @pytest.mark.nightly
    def test_a_hundred_thousand(self) -> None:
        """In processes of their own, with bounded memory."""
        code = (
            "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30));"
            "import sys, faulthandler; faulthandler.enable();"
            "from tests.ingots.fuzz import read_changed; read_changed(10_000, int(sys.argv[1]));"
            "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM:')))"
        )
        for seed in range(10):
            # Not what is said of a child's usage: its peak begins with that of the process that started it.
            run = subprocess.run(
                [sys.executable, "-c", code, str(seed)],
                check=True,
                cwd=Path(__file__).parents[2],
                stdout=subprocess.PIPE,
            )
            assert int(run.stdout.split()[-2]) < 4 << 20  # kilobytes


def test_whole_numbers_have_64_bits() -> None:
    """Of both signs' kinds, whatever stands beside them in the text."""
    for number in (0, -1, 10**18, 2**63 - 1, -(2**63), 2**64 - 1):
        assert loads(memoryview(dumps([number, "9" * 30, 0.5])), "manifest.json").value[0] == number
    for number in (2**64, -(2**63) - 1, 10**40):
        with pytest.raises(smelt.PackageError, match="beyond 64 bits"):
            loads(memoryview(dumps({"a": [number]})), "manifest.json")
