"""bench/volume.py: studies of what algorithms receive, what they tell, and what they refuse."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.jobs import ended_here

from bench import volume

ROOT = Path(__file__).parents[2]
VOLUME = sys.executable, "-m", "bench.volume"


def test_the_study_of_volumes_plans_conversions_too(tmp_path):
    told = tmp_path / "told.json"
    subprocess.run([*VOLUME, "--to", "38", "--convert", "9", "--json", told], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    for shape in json.loads(told.read_text()):
        assert list(shape["converted"]) == ["2", "11", "20", "29", "38"]
        assert all(words >= moved >= 0 and words > 0.99 for words, moved in shape["converted"].values())


def test_the_study_of_many_ranks_compares_the_box_that_is_taken_with_the_one_of_fewest_words():
    assert volume.fewest_words((64, 64, 64), 64) == (4, 4, 4)
    box, over, messages, seconds = volume.far_out((512, 512, 64), 4096)
    assert box.ranks < 4096 and over > 1.15 and messages < 13 and max(seconds) < 0.9


def test_a_study_of_few_ranks_has_no_heading_for_many_and_tells_each_ratio():
    """docs/choosing.md had a column that the command did not print: from and to 2-D blocks, over the least of any box."""
    words = ["--to", "9", "--convert", "7", "--least", "7"]
    done = subprocess.run([*VOLUME, *words], check=True, cwd=ROOT, capture_output=True, text=True)
    assert "P < 32" in done.stdout and "P >= 32" not in done.stdout
    ratios = [float(line.split()[-1]) for line in done.stdout.splitlines() if "2-D blocks over that" in line]
    assert len(ratios) == 4 and all(ratio > 0.99 for ratio in ratios)


@pytest.mark.parametrize("words", [("--every", "0"), ("--to", "0"), ("--convert", "-1")])
def test_the_study_of_volumes_refuses_what_it_cannot_count(capsys, words):
    status, _, err = ended_here(capsys, "volume.py", *words)
    assert status == 2 and f"argument {words[0]}: '{words[1]}' is not a whole number" in err


@pytest.mark.parametrize("words", [("--plot", "none/x.svg"), ("--plot", "x.bmp"), ("--json", "none/x.json"), ("--json", ".")])
def test_the_study_of_volumes_refuses_a_file_that_it_could_not_write(capsys, words):
    """It said so after minutes, by a traceback, and all that it had counted was lost."""
    status, out, err = ended_here(capsys, "volume.py", *words)
    assert (status, out) == (2, "") and f"argument {words[0]}: {words[1]}: " in err
