"""bench/cases/volume.py: studies of what algorithms receive, what they tell, and what they refuse."""

import pytest
from helpers.cases import refused

from bench.cases import volume


def test_the_study_of_volumes_plans_conversions_too():
    for mnk in volume.SHAPES:
        ways, shares = volume.study(mnk, 38, every=12, convert=9, least=0)
        assert list(ways[volume.CONVERTED]) == [2, 11, 20, 29, 38] and list(shares) == list(ways[volume.OURS]) == [2, 14, 26, 38]
        assert not ways[volume.LEAST] and min(ways[volume.CONVERTED].values()) > 0.99
        assert all(words >= moved >= 0 for words, moved in (volume.count_converted(mnk, ranks) for ranks in ways[volume.CONVERTED]))


def test_the_study_of_many_ranks_compares_the_box_that_is_taken_with_the_one_of_fewest_words():
    assert volume.find_fewest((64, 64, 64), 64) == (4, 4, 4)
    box, over, messages, seconds = volume.compare_fewest((512, 512, 64), 4096)
    assert box.ranks < 4096 and over > 1.15 and messages < 13 and min(seconds) > 0


def test_a_study_of_few_ranks_has_no_rows_for_many_and_tells_each_ratio():
    """docs/choosing.md had a column that the command did not print: from and to 2-D blocks, over the least of any box."""
    rows = list(volume.volume(volume.SHAPES, to=9, convert=7, least=7))
    assert {row[0] for row in rows} == {"P < 32"}
    ratios = [row[5] for row in rows if row[2] == volume.OVER]
    assert len(ratios) == 4 and all(ratio > 0.99 for ratio in ratios)


@pytest.mark.parametrize("words", [("--every", "0"), ("--to", "0"), ("--convert", "-1")])
def test_the_study_of_volumes_refuses_what_it_cannot_count(capsys, words):
    _, err = refused(capsys, "volume", *words)
    assert f"argument {words[0]}: '{words[1]}' is not a whole number" in err


@pytest.mark.parametrize("words", [("--plot", "none/x.svg"), ("--plot", "x.bmp")])
def test_the_study_of_volumes_refuses_a_file_that_it_could_not_write(capsys, words):
    """It said so after minutes, by a traceback, and all that it had counted was lost."""
    out, err = refused(capsys, "volume", *words)
    assert out == "" and f"argument {words[0]}: {words[1]}: " in err
