import shutil

import pytest

from tpumagic.hlo import dump


def copy_of(folder, target):
    shutil.copytree(folder, target)
    return target


def test_a_plan_is_read_before_the_compiler_is_done(dump_folder, tmp_path):
    folder = copy_of(dump_folder("scan_gradient"), tmp_path / "dump")
    whole = dump.read(folder)
    assert whole.name.endswith("jit_scan_grad.cl_1")
    assert (whole.out_of_memory, whole.compiled is None) == (False, False)
    next(folder.glob("*after_codegen.txt")).unlink()
    assert dump.read(folder).compiled is None


def test_a_program_that_does_not_fit_leaves_its_plan_all_the_same(stored):
    found = stored("out_of_memory")
    assert found.out_of_memory
    assert found.compiled is None
    assert found.buffer_assignment.startswith("BufferAssignment:")
    assert found.live_ranges.startswith("HloLiveRange")


@pytest.mark.parametrize("share", [0, 0.2, 0.9, 0.999])
def test_a_module_that_is_still_being_written_is_not_there_yet(dump_folder, tmp_path, share):
    folder = copy_of(dump_folder("scan_gradient"), tmp_path / "dump")
    planned = next(folder.glob(f"*{dump.PLANNED}"))
    text = planned.read_text()
    planned.write_text(text[: int(len(text) * share)])
    assert dump.read(folder) is None
    planned.write_text(text)
    compiled = next(folder.glob(f"*{dump.COMPILED}"))
    compiled.write_text(compiled.read_text()[:-3])
    assert dump.read(folder).compiled is None


def test_no_prefix_of_a_module_is_taken_for_the_whole(stored):
    text = stored("out_of_memory").module
    assert [size for size in range(len(text.rstrip()) - 1) if dump.is_whole(text[:size])] == []
    assert dump.is_whole(text)


def test_of_several_modules_the_largest_is_the_program(dump_folder, tmp_path):
    folder = copy_of(dump_folder("loop_to_data"), tmp_path / "dump")
    for path in dump_folder("sharded_block").iterdir():
        shutil.copy(path, folder)
    assert "jit_shard" in dump.read(folder).name


def test_an_empty_folder_and_none_hold_nothing(tmp_path):
    assert dump.read(tmp_path) is None
    assert dump.read(tmp_path / "none") is None


def test_a_plan_without_its_texts_beside_it_is_a_module_alone(dump_folder, tmp_path):
    folder = copy_of(dump_folder("loop_to_data"), tmp_path / "dump")
    for path in [*folder.glob("*assignment.txt"), *folder.glob("*live-range.txt")]:
        if not path.name.endswith(dump.PLANNED):
            path.unlink()
    found = dump.read(folder)
    assert (found.buffer_assignment, found.live_ranges) == (None, None)
